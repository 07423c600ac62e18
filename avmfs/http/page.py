"""What a person sees in a browser: routes under /, HTML made here, files of ``static``.

Owns signing in and out. A page asks the door through ``Service.ask`` as whoever ``identity.visitor`` names, so that it
shows what that agent may see and nothing else; every value goes through ``html.escape``. No script or style comes
from anywhere else: the service's Content-Security-Policy refuses it.
"""

from __future__ import annotations

from html import escape
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from avmfs.http import identity
from avmfs.http.doors import Unauthorized
from avmfs.http.rest import Service

_FRAME: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title></head>
<body><main><h1>{title}</h1>
{body}
</main></body></html>
"""
_STRANGER: Final = "<p>Nobody is signed in here. <code>avm open</code> in a terminal opens this page as your agent.</p>"


def routes(service: Service) -> list[Route]:
    async def home(request: Request) -> Response:
        caller = identity.visitor(request, service.sessions, service.port)
        if caller is None:
            return page("avm", _STRANGER, 401)
        who = f"{caller.agent}, as the operator" if caller.operator else caller.agent or ""
        said = f"<p>Signed in as <strong>{escape(who)}</strong>.</p>"
        leave = '<form method="post" action="/sign-out"><button>Sign out</button></form>'
        return page("avm", f'{said}<p><a href="/openapi.json">The interface for programs</a></p>{leave}')

    async def sign_in(request: Request) -> Response:
        """A one-time code becomes a cookie, and is good for nothing from then on."""
        try:
            token = service.sessions.exchange(request.query_params.get("code", ""))
        except Unauthorized as e:
            return page("avm", f"<p>{escape(e.reason)}</p>", 401)
        response = RedirectResponse("/", 303)
        response.set_cookie(
            identity.cookie_name(service.port),
            token,
            max_age=int(identity.TOKEN_S),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    async def sign_out(request: Request) -> Response:
        service.sessions.end(request.cookies.get(identity.cookie_name(service.port), ""))
        response = RedirectResponse("/", 303)
        response.delete_cookie(identity.cookie_name(service.port))
        return response

    return [
        Route("/", home, methods=["GET"]),
        Route("/sign-in", sign_in, methods=["GET"]),
        Route("/sign-out", sign_out, methods=["POST"]),
    ]


def page(title: str, body: str, status: int = 200) -> HTMLResponse:
    """A whole page. ``body`` is HTML: what others wrote was escaped before."""
    return HTMLResponse(_FRAME.format(title=escape(title), body=body), status)
