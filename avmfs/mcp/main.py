"""The program ``avm-mcp``: options, identity, transport.

Owns the order of a start: the door is opened first, so that a wrong identity is refused before anything else is loaded;
then the SDK is. stdout carries the protocol and nothing else, problems and the log go to stderr. Exit codes as for
``avm``: 0 ok, 1 refused, 2 usage, 75 temporary.
"""

from __future__ import annotations

import gc
import importlib.metadata
import logging
import os
import sys
from typing import NoReturn

import click

from avmfs.closed_streams import stand_in_for_closed
from avmfs.errors import AvmError, Busy, Invalid
from avmfs.extras import bring
from avmfs.logs import log_to_stderr
from avmfs.text.escapes import visible

REFUSED, USAGE, TEMPORARY = 1, 2, 75


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--user", "-u", metavar="NAME", help="The agent to speak for.  [default: AVM_AGENT]")
@click.option(
    "--tools",
    "offered",
    default="core",
    show_default=True,
    metavar="core|all|NAME,...",
    help="Which tools are offered; each costs every session its description. With all, results are described too.",
)
@click.option("--http", is_flag=True, help="Serve streamable HTTP instead of stdin and stdout.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8765, show_default=True, type=click.IntRange(0, 65535), help="0: any free one.")
@click.option("--token-file", metavar="FILE", help="The bearer token of HTTP clients; made if missing.")
@click.option("--allow-host", multiple=True, metavar="NAME", help="A further Host that clients may name.")
@click.option("--allow-origin", multiple=True, metavar="ORIGIN", help="A web page's origin that may connect.")
@click.option("--allow-remote", is_flag=True, help="Listen on an address that other machines reach.")
@click.option("--at", metavar="URL", help="A daemon's HTTP service, on whatever machine (AVM_AT; AVM_API_KEY).")
@click.option("--db", metavar="FILE", help="The database (AVM_DB).")
@click.option("--config", metavar="FILE", help="config.yaml (AVM_CONFIG).")
@click.option("--verbose", "-v", is_flag=True, help="Log every request to stderr.")
@click.version_option(package_name="avmfs", prog_name="avm-mcp")
def avm_mcp(
    user: str | None,
    offered: str,
    http: bool,
    host: str,
    port: int,
    token_file: str | None,
    allow_host: tuple[str, ...],
    allow_origin: tuple[str, ...],
    allow_remote: bool,
    at: str | None,
    db: str | None,
    config: str | None,
    verbose: bool,
) -> None:
    """Offer one agent's memory to an MCP client.

    NAME must be an agent that your Unix user may speak for; the daemon decides. Without a daemon the store is opened
    directly, which its owner alone can do.
    """
    log_to_stderr("avm-mcp: %(levelname)s %(message)s", logging.INFO if verbose else logging.WARNING)
    from avmfs.api.connect import asked, located, who_am_i
    from avmfs.mcp.session import Session

    environ = asked(os.environ, at=at, db=db, config=config)
    where = located(environ, db, config)
    if not (user or (user is None and (environ.get("AVM_AGENT") or environ.get("AVM_AT")))):
        raise Invalid("who is asking? name the agent: --user NAME, or AVM_AGENT=NAME")
    agent = "" if user is None and not environ.get("AVM_AGENT") else who_am_i(user, environ)
    listener, secret = None, ""
    if http:
        from avmfs.mcp.guard import listen, token

        listener = listen(host, port, remote=allow_remote)
        secret = token(token_file, where.data_dir, agent or "at")
    session = Session(where, agent, environ, begins=True)

    # The SDK's modules make some hundred thousand objects that all stay: collecting meanwhile is a third of the time.
    gc.disable()
    from avmfs.mcp.loading import lightly

    with lightly():
        from avmfs.mcp.server import MemoryServer

    server = MemoryServer(session, importlib.metadata.version("avmfs"), offered)
    gc.freeze()
    gc.enable()
    if listener is not None:
        from avmfs.mcp.http import serve_http

        with listener:
            serve_http(server, listener, secret, allow_host, allow_origin)
    else:
        import anyio

        from avmfs.mcp.stdio import serve

        server.tell_of_mail()
        anyio.run(serve, server)


def main() -> NoReturn:
    """Run; never returns."""
    stand_in_for_closed(drop=True)
    try:
        code = avm_mcp.main(standalone_mode=False) or 0
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as e:
        e.show()
        code = USAGE
    except AvmError as e:
        print(f"avm-mcp: {visible(str(e))}", file=sys.stderr)
        code = USAGE if isinstance(e, Invalid) else TEMPORARY if isinstance(e, Busy) else REFUSED
    except OSError as e:
        print(f"avm-mcp: {visible(str(e))}", file=sys.stderr)
        code = REFUSED
    except ImportError as e:
        print(f"avm-mcp: it needs more: {bring('mcp')} ({e})", file=sys.stderr)
        code = REFUSED
    except ValueError as e:  # ConfigError: the message names file, key and reason
        print(f"avm-mcp: {visible(str(e))}", file=sys.stderr)
        code = USAGE
    except Exception:
        logging.getLogger(__name__).exception("ended by an error")
        code = REFUSED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a worker thread may still wait for an answer that nobody wants any more
