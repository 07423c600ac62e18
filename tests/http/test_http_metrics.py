"""What /metrics says: figures that are so, in Prometheus's form, for the operator; and the dashboard's queries."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.daemons import LIMIT_S, wait
from tests.http.http_world import Web, of, started

parser = pytest.importorskip("prometheus_client.parser")
DASHBOARD = Path(__file__).parents[2] / "docs/grafana.json"


def scrape(web: Web, token: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    got = web.ask("GET", "/metrics", token=token)
    assert (got.status, got.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8"), got
    families = list(parser.text_string_to_metric_families(got.body.decode()))
    assert len({family.name for family in families}) == len(families)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def value(found: Any, name: str, **labels: str) -> float:
    return float(found.get((name, tuple(sorted(labels.items()))), 0.0))


@pytest.fixture
def own(root: Path) -> Iterator[Web]:
    daemon = started(root)
    try:
        yield of(daemon)
    finally:
        daemon.command("stop")
        daemon.clean_up()


def token_of(web: Web) -> str:
    path = web.runtime.parent / "data/metrics.token"
    assert path.stat().st_mode & 0o777 == 0o600
    return path.read_text().strip()


def test_figures_are_for_the_operator_and_the_scraper(web: Web) -> None:
    assert web.ask("GET", "/metrics").status == 401
    assert web.ask("GET", "/metrics", token="x" * 43).status == 401
    assert web.ask("GET", "/metrics", token=web.token("alice")).status == 403
    assert web.ask("GET", "/metrics", token=web.token("operator", operator=True)).status == 200
    assert web.ask("GET", "/metrics", token=token_of(web)).status == 200
    assert web.call(token_of(web), "tags").status == 401  # it is good for nothing else


def test_what_is_done_is_counted(web: Web) -> None:
    token, alice = token_of(web), web.token("alice")
    before = scrape(web, token)
    for number in range(7):
        web.call(alice, "write", path=f"/shared/counted/{number}.md", data="the counted heron")
    web.call(alice, "read", path="/shared/none.md")
    for question in ("heron", "zebra quagga okapi"):
        web.call(alice, "recall", q=question)
    after = scrape(web, token)

    def more(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert more("avm_door_seconds_count", method="write") == 7
    assert more("avm_door_seconds_bucket", method="write", le="+Inf") == 7
    assert more("avm_door_errors_total", code="ENOENT") == 1
    assert sum(more("avm_recalls_total", outcome=each) for each in ("answered", "silent", "degraded")) == 2
    assert more("avm_commit_requests_sum") >= more("avm_commit_requests_count") >= 7
    assert more("avm_http_seconds_count", status="4xx") == 1
    assert value(after, "avm_process_up", process="writer") == 1
    assert value(after, "avm_store_bytes", file="database") > 0


def test_buckets_rise_to_the_count(web: Web) -> None:
    found = scrape(web, token_of(web))
    series: dict[Any, list[tuple[float, float]]] = {}
    for (name, labels), count in found.items():
        if name.endswith("_bucket"):
            rest = tuple(each for each in labels if each[0] != "le")
            series.setdefault((name, rest), []).append((float(dict(labels)["le"]), count))
    assert series
    for (name, rest), buckets in series.items():
        counts = [count for _, count in sorted(buckets)]
        assert counts == sorted(counts)
        assert counts[-1] == found[name.replace("_bucket", "_count"), rest]


def test_a_process_that_is_replaced_goes_on_counting(own: Web, root: Path) -> None:
    alice, token = own.token("alice"), token_of(own)
    for number in range(5):
        own.call(alice, "write", path=f"/shared/{number}.md", data="x")
    before = scrape(own, token)
    # The door's pid is in the name of what it counts in.
    [door] = (own.runtime / "metrics").glob("door.*")
    os.kill(int(door.suffix[1:]), signal.SIGKILL)
    wait(lambda: own.call(alice, "read", path="/shared/1.md").status == 200)
    after = scrape(own, token)
    fallen = {
        key: (count, after.get(key))
        for key, count in before.items()
        if key[0].endswith(("_total", "_count", "_bucket", "_sum")) and after.get(key, -1.0) < count
    }
    assert fallen == {}
    assert len(list((own.runtime / "metrics").glob("door.*"))) == 1


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here: apt-get install prometheus")
    return found


def test_promtool_finds_nothing_wrong(web: Web) -> None:
    text = web.ask("GET", "/metrics", token=token_of(web)).body
    done = subprocess.run([tool("promtool"), "check", "metrics"], input=text, capture_output=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_prometheus_scrapes_it_and_answers_every_query_of_the_dashboard(web: Web, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    target: dict[str, Any] = {
        "static_configs": [{"targets": [f"{web.host}:{web.port}"]}],
        "job_name": "avm",
        "scrape_interval": "1s",
    }
    target["authorization"] = {"credentials_file": str(web.runtime.parent / "data/metrics.token")}
    (tmp_path / "p.yml").write_text(json.dumps({"scrape_configs": [target]}))
    command = [tool("prometheus"), f"--config.file={tmp_path / 'p.yml'}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
    process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL)
    try:

        def ask(query: str) -> Any:
            url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
            with contextlib.suppress(ConnectionError, urllib.error.URLError), urllib.request.urlopen(url) as answer:
                return json.load(answer)
            return None

        wait(lambda: (got := ask("up")) and any(each["value"][1] == "1" for each in got["data"]["result"]))
        for query in queries():
            assert ask(query)["status"] == "success", query
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def queries() -> list[str]:
    board = json.loads(DASHBOARD.read_text())
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]


def test_every_query_of_the_dashboard_is_of_figures_that_are_there(web: Web) -> None:
    assert len(queries()) > 10
    alice = web.token("alice")
    web.call(alice, "recall", q="anything")
    web.call(alice, "read", path="/none")
    shown = {name for name, _ in scrape(web, token_of(web))}
    wanted = {name for query in queries() for name in re.findall(r"\bavm_[a-z_]+", query)}
    # Without a model, deliveries and mounts these have nothing to say in this daemon.
    silent = {"avm_fuse_requests_total", "avm_searchable_after_seconds", "avm_outbox_waiting", "avm_outbox_dead"}
    assert wanted - shown <= silent | {"avm_backup_age_seconds", "avm_process_restarts_total"}
