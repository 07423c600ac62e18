"""What a person sees in a browser: the frame of every page, signing in and out, and what a page's forms do.

Owns who is asked as: pages (``pages``) ask the door through ``Service.ask`` as whoever ``identity.visitor`` names, so
they show what that agent may see and nothing else. No script or style comes from anywhere else: the service's
Content-Security-Policy refuses it. A form changes something only where ``http: {write: true}``, and only from our page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from avmfs.errors import AvmError, Denied, Invalid, NotFound
from avmfs.http import identity, pages, values
from avmfs.http.doors import Caller, Unauthorized
from avmfs.http.markup import Html, address, el, link, many, name
from avmfs.http.rest import Service, body_of
from avmfs.text.escapes import visible, visible_lines
from avmfs.text.sniff import is_crlf
from avmfs.views import picture

_STATIC: Final = Path(__file__).with_name("static")
_LARGEST: Final = 1024 * 1024  # bytes of a form
_STRANGER: Final = many(
    "Nobody is signed in here. ", el("code", "avm open"), " in a terminal opens this page as your agent."
)
Form = dict[str, str]


def routes(service: Service) -> list[Route]:
    async def static(request: Request) -> Response:
        return FileResponse(_STATIC / request.url.path[1:], headers={"cache-control": "max-age=300"})

    visits = _Visits(service)
    return [
        *(Route(where, visits.look, methods=["GET"]) for where in pages.PAGES),
        *(Route(f"/{each}", static, methods=["GET"]) for each in ("style.css", "icon.svg")),
        Route("/graph.svg", visits.draw, methods=["GET"]),
        Route("/do/{name}", visits.do, methods=["POST"]),
        *_signing(service),
    ]


class _Visits:
    """What a browser asks for, as whoever its cookie names."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def look(self, request: Request) -> Response:
        try:
            caller = self._caller(request)
        except Unauthorized:
            return page("avm", el("p", _STRANGER), status=401)
        ask, banners = self._asking(request, caller)
        try:
            query = _query(request.url.query)
            if ago := query.pop("ago", ""):
                here = {**query, "at": f"-{ago}h" if ago != "0" else ""}
                return RedirectResponse(address(request.url.path, **here), 303)
            visit = pages.Visit(ask, query, self._service.write, caller.operator)
            title, body = await pages.PAGES[request.url.path].make(visit)
            status = 200
        except AvmError as e:
            (title, body), status = pages.refused(e), values.status_of(e)
        return await self._service.in_thread(lambda: page(title, body, caller, banners[-1], request.url.path, status))

    async def draw(self, request: Request) -> Response:
        """The links below a directory, as a picture."""
        try:
            caller = self._caller(request)
            path = _query(request.url.query).get("path", "/memory")
            found, _ = await self._service.ask(request, caller, "graph", {"path": path})
            svg = await self._service.in_thread(lambda: picture.svg(found))
        except AvmError as e:
            return values.refusal(e, False)
        return Response(svg.encode("utf-8", "replace"), media_type="image/svg+xml")

    async def do(self, request: Request) -> Response:
        """A form of a page. The cookie is not sent by other sites; that it came from ours is asked for as well."""
        caller = None
        try:
            caller = self._caller(request)
            action = _ACTIONS.get(request.path_params["name"])
            if action is None:
                raise NotFound(f"there is no form {request.path_params['name']!r}")
            if not self._service.write:
                raise Denied("this page changes nothing: http: {write: true} in config.yaml lets it")
            if not request.headers.get("origin"):
                raise Denied("a form has to come from a page of this service")
            given = _query((await body_of(request, _LARGEST)).decode("ascii", "replace"))
            return RedirectResponse(await action(self._asking(request, caller)[0], given), 303)
        except AvmError as e:
            title, body = pages.refused(e)
            return page(title, body, caller, status=values.status_of(e))

    def _caller(self, request: Request) -> Caller:
        caller = identity.visitor(request, self._service.sessions, self._service.port)
        if caller is None:
            raise Unauthorized("nobody is signed in")
        return caller

    def _asking(self, request: Request, caller: Caller) -> tuple[pages.Ask, list[str]]:
        """What asks the door, and the banners that came with its answers."""
        banners = [""]

        async def ask(method: str, **given: Any) -> Any:
            result, urgent = await self._service.ask(request, caller, method, given)
            banners.append(urgent)
            return result

        return ask, banners


def _signing(service: Service) -> list[Route]:
    async def sign_in(request: Request) -> Response:
        """A one-time code becomes a cookie, and is good for nothing from then on."""
        try:
            token = service.sessions.exchange(request.query_params.get("code", ""))
        except Unauthorized as e:
            return page("avm", el("p", e.reason), status=401)
        response = RedirectResponse("/", 303)
        response.set_cookie(
            identity.cookie_name(service.port),
            token,
            max_age=round(service.sessions.left_s(token)),
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
        Route("/sign-in", sign_in, methods=["GET"]),
        Route("/sign-out", sign_out, methods=["POST"]),
    ]


def page(
    title: str, body: Html, caller: Caller | None = None, urgent: str = "", where: str = "", status: int = 200
) -> HTMLResponse:
    """A whole page, for whoever is signed in."""
    parts: list[Html] = []
    if caller is not None:
        tabs = [
            el("li", el("a", each.label, href=at, aria_current="page" if at == where else None))
            for at, each in pages.PAGES.items()
            if each.label
        ]
        who = many(name(caller.agent or ""), ", as the operator" if caller.operator else "")
        leave = el("form", el("button", f"Sign out {caller.agent or ''}"), method="post", action="/sign-out")
        parts = [
            el("a", "To the content", href="#content", class_="skip"),
            el("header", el("nav", el("ul", *tabs), aria_label="pages"), el("p", "Signed in as ", who, class_="here")),
        ]
        body = many(
            el("pre", visible_lines(urgent), class_="warn", role="alert") if urgent else None,
            body,
            el("footer", leave, link("The interface for programs", "/openapi.json")),
        )
    head = many(
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("link", rel="stylesheet", href="/style.css"),
        el("link", rel="icon", href="/icon.svg", type="image/svg+xml"),
        el("title", f"{visible(title)} – avm"),
    )
    main = el("main", el("h1", name(title)), body, id="content")
    html = f"<!doctype html>\n{el('html', el('head', head), el('body', *parts, main), lang='en')}\n"
    return HTMLResponse(html.encode("utf-8", "replace"), status)


def _query(text: str) -> dict[str, str]:
    """Names and values; bytes that are no UTF-8 stay what they are. Raises Invalid."""
    try:
        return dict(parse_qsl(text, keep_blank_values=True, errors="surrogateescape", max_num_fields=50))
    except ValueError as e:
        raise Invalid(str(e)) from None


# --- what forms do: each returns the page to go to ---------------------------------------------------------------


async def _write(ask: pages.Ask, form: Form) -> str:
    try:
        read = bytes.fromhex(form.get("instead_of", ""))
    except ValueError:
        raise Invalid("instead_of: expected a SHA-256") from None
    path, text = form.get("path", ""), form.get("text", "")  # a form sends \r\n, whatever it was given
    before = (await ask("read", path=path, banner=False))["data"]
    if not is_crlf(before.decode("utf-8", "surrogateescape")):
        text = text.replace("\r\n", "\n")
    await ask("write", path=path, data=text.encode("utf-8", "surrogateescape"), instead_of=read)
    return address("/note", path=form.get("path"))


async def _restore(ask: pages.Ask, form: Form) -> str:
    if not form.get("version", "").isdecimal():
        raise Invalid("version: expected a number")
    await ask("restore", path=form.get("path", ""), version=int(form["version"]))
    return address("/note", path=form.get("path"))


async def _put_back(ask: pages.Ask, form: Form) -> str:
    found = await ask("put_back", path=form.get("path", ""))
    return address("/note", path=found["path"])


async def _tell(ask: pages.Ask, form: Form) -> str:
    priority = "urgent" if form.get("urgent") else "normal"
    await ask("tell", recipient=form.get("to", ""), body=form.get("body", ""), priority=priority)
    return "/inbox"


async def _let_out(ask: pages.Ask, form: Form) -> str:
    found = await ask("let_out", path=form.get("path", ""))
    return address("/note", path=found["path"])


async def _reject(ask: pages.Ask, form: Form) -> str:
    await ask("reject", path=form.get("path", ""))
    return "/trash"


_ACTIONS: Final[dict[str, Callable[[pages.Ask, Form], Awaitable[str]]]] = {
    "write": _write,
    "restore": _restore,
    "put-back": _put_back,
    "let-out": _let_out,
    "reject": _reject,
    "tell": _tell,
}
