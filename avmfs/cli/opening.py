"""avm open: the memory in a browser, signed in by a one-time code."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Final

import click

from avmfs.cli.main import Globals, subcommand
from avmfs.cli.session import door, show
from avmfs.errors import Busy, NotSupported
from avmfs.rpc.client import Door

START_S: Final = 30.0


@subcommand("open", "Open the memory in a browser.")
@click.option("--print", "only_print", is_flag=True, help="Print the address alone, and start no browser.")
def open_(ctx: click.Context, memory: Door, only_print: bool) -> None:
    """Open the page of the daemon's HTTP service, signed in as you; with --operator as the operator.

    The address that is printed is good once, within a minute. Where the configuration has the service off, it is
    begun on this machine until the daemon ends, which an operator may do.
    """
    try:
        found = _signed_in(memory)
    except NotSupported:
        given: Globals = ctx.obj
        given.operator, before = True, given.operator
        with door() as operator:
            _signed_in(operator, start=True)
        given.operator = before
        found = _signed_in(memory)
    url = f"{found['url']}/sign-in?code={found['code']}"
    show({**found, "url": url}, f"{url}\n", prose=False)
    shown = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if shown and sys.stdout.isatty() and not only_print:
        click.launch(url)


def _signed_in(memory: Door, **how: Any) -> dict[str, Any]:
    """What ``sign_in`` says once the service has started."""
    until = time.monotonic() + START_S
    while True:
        try:
            found: dict[str, Any] = memory.call("sign_in", **how)
            return found
        except Busy:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
