"""A directory with very many files in an avmfs store, filled by several clients at once through the daemon's door."""

from __future__ import annotations

from benchmarks.clients import started_clients
from benchmarks.daemons import Daemon

CLIENTS = 8
FILL_S = 540.0


def fill(daemon: Daemon, agent: str, folder: str, count: int) -> None:
    """`count` small files below `folder`, an absolute path in the store; by group commit, or it would take minutes."""
    share = -(-count // CLIENTS)
    with started_clients("benchmarks.file_ops", CLIENTS, daemon.environment) as clients:
        for i, client in enumerate(clients):
            first = i * share
            arguments = {"agent": agent, "folder": folder, "first": first, "count": max(0, min(share, count - first))}
            client.send("fill_by_api", arguments)
        for client in clients:
            client.receive_within(FILL_S)
