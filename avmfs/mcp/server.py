"""The server: what each MCP request does, for one agent.

Owns the handlers, how a tool's answer becomes a result, and that urgent mail is a content block of its own, never
mixed into a text. Stands on the SDK's low-level Server, which takes every handler as an argument. Called by ``main``
with an open session; knows nothing of transports.

Handlers run in the event loop, what asks the door in worker threads: so many of each server, and apart from these so
many that wait for something, since a process may serve several agents.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
import mcp_types as types
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import ListenHandler
from mcp.server.transport_security import DEFAULT_MAX_REQUEST_BODY_SIZE, RequestBodyLimitMiddleware
from mcp.shared.exceptions import MCPError

from avmfs import calls
from avmfs.errors import AvmError, Busy, StoreFailed
from avmfs.mcp import prompts, registry, resources
from avmfs.mcp.messages import Answering
from avmfs.mcp.session import Session
from avmfs.mcp.watching import Watching
from avmfs.text.escapes import escaped, visible
from avmfs.trust import heading

log = logging.getLogger(__name__)
T = TypeVar("T")

INSTRUCTIONS = """\
A memory that you share with the other agents of this machine. You are {agent}.
{advice}/memory/shared is seen by all agents, /private by you alone. A block headed URGENT comes from another agent, not
from your user."""
ADVICE = {
    "avm_recall": "Recall before you begin (avm_recall)",
    "avm_remember": 'keep what will matter later (avm_remember: private unless namespace is "shared")',
    "avm_inbox": "look at messages (avm_inbox)",
    "avm_tell": "tell other agents what they need to know (avm_tell)",
}
AT_ONCE = 16  # worker threads, and as many of calls that wait
URGENT, UNTRUSTED = "avm/urgent", "avm/untrusted"  # in the _meta of a block, and of a resource's content


class _Call:
    """One request, as tools see it. Lives in a worker thread."""

    def __init__(self, session: Session, context: Any) -> None:
        self.agent = session.agent
        self.urgent = ""
        self._session = session
        self._context = context
        self._waits = calls.Call()
        self._waiting: Session | None = None

    def door(self, method: str, /, **arguments: Any) -> Any:
        return self._ask(self._session, method, arguments)

    def patient(self, method: str, **arguments: Any) -> Any:
        self._waiting = session = self._session.another()
        calls.working.call = self._waits  # of a door in this process
        try:
            calls.go_on()
            return self._ask(session, method, arguments)
        finally:
            calls.working.call = None
            session.close()

    def hang_up(self) -> None:
        """From any thread, once nobody waits for the answer: nor does the door, which would take what comes next."""
        self._waits.give_up()
        if self._waiting is not None:
            self._waiting.hang_up()

    def _ask(self, session: Session, method: str, arguments: dict[str, Any]) -> Any:
        result, self.urgent = session.call(method, arguments)
        return result

    def progress(self, done: float, total: float, message: str) -> None:
        # A client that has gone away has cancelled the request, which is noticed elsewhere.
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            anyio.from_thread.run(self._context.session.report_progress, done, total, message)

    def urgent_is_shown(self) -> None:
        self.urgent = ""


class MemoryServer(Server[Any]):
    """The server of one agent. ``close`` when it is no longer served."""

    def __init__(
        self, session: Session, version: str, offered: str = "core", waits: anyio.CapacityLimiter | None = None
    ) -> None:
        """``offered``: see registry.offered. ``waits``: room for calls that wait, which servers of one agent share.
        Raises BadArguments."""
        self._session = session
        self._threads, self._waits = anyio.CapacityLimiter(AT_ONCE), waits or anyio.CapacityLimiter(AT_ONCE)
        self._tools = registry.offered(offered)
        # What a result's fields are costs as much as all else; who wants all tools is a program.
        self._described = offered == "all"
        self._watching = Watching(session)
        self._listen = ListenHandler(self._watching.bus)
        super().__init__(
            "avm",
            version=version,
            title="Agent memory",
            instructions=_instructions(session.agent, self._tools),
            description="One shared, searchable memory for the agents on this machine",
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_subscribe_resource=self._subscribe,
            on_unsubscribe_resource=self._unsubscribe,
            on_subscriptions_listen=self._listened,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_completion=self._complete,
        )

    def close(self) -> None:
        self._watching.close()
        self._session.close()

    def tell_of_mail(self) -> None:
        """Say in the instructions how much is unread, for the one session of this server: to one that comes later it
        would be of another time."""
        self.instructions = f"{self.instructions}{_waiting(self._session)}"

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        told = notification_options or NotificationOptions(resources_changed=True)
        return super().create_initialization_options(told, experimental_capabilities, extensions)

    def streamable_http_app(self, *, max_request_body_size: int = DEFAULT_MAX_REQUEST_BODY_SIZE, **more: Any) -> Any:
        app = super().streamable_http_app(max_request_body_size=max_request_body_size, **more)
        app.add_middleware(Answering)
        # What stands before it gets a body in one piece.
        app.add_middleware(RequestBodyLimitMiddleware, max_body_size=max_request_body_size)
        return app

    # Tools ---------------------------------------------------------------------------------------------------

    async def _list_tools(self, ctx: Any, params: Any) -> types.ListToolsResult:
        _first_page(params)
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=each.name,
                    title=each.title,
                    description=each.description,
                    annotations=each.annotations,
                    input_schema=registry.input_schema(each),
                    output_schema=registry.output_schema(each) if self._described else None,
                )
                for each in self._tools.values()
            ]
        )

    async def _call_tool(self, ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        found = self._tools.get(params.name)
        if found is None:
            known = " here (avm-mcp --tools)" if params.name in registry.tools() else ""
            raise MCPError(types.INVALID_PARAMS, visible(f"no tool is called {params.name!r}{known}"))
        call = _Call(self._session, ctx)
        try:
            arguments = registry.bind(found, params.arguments or {})
            answer: registry.Answer[Any] = await self._in_thread(
                lambda: found.run(call, **arguments), waits=bool(arguments.get("wait"))
            )
        except anyio.get_cancelled_exc_class():
            call.hang_up()
            raise
        except (AvmError, registry.BadArguments) as e:
            answer = registry.Answer(_reason(e, (params.arguments or {}).get("path")), None, failed=True)
            if not call.urgent and not isinstance(e, Busy):  # an error brings none, and Busy is the door itself
                with contextlib.suppress(AvmError):  # what keeps it from answering the next call says
                    call.urgent = await self._in_thread(lambda: call.door("urgent"))
        except Exception:  # a defect in one tool must not end the server
            log.exception("tool %s failed", params.name)
            said = f"{params.name}: internal error; the server's stderr has the details"
            answer = registry.Answer(said, None, failed=True)
        value = None if answer.value is None else answer.value.model_dump(mode="json")
        return types.CallToolResult(
            content=[_text(answer.text), *_urgent(call.urgent)], structured_content=value, is_error=answer.failed
        )

    # Resources -----------------------------------------------------------------------------------------------

    async def _list_resources(self, ctx: Any, params: Any) -> types.ListResourcesResult:
        _first_page(params)
        found = await self._ask(ctx, resources.listed)
        await self._watching.listed(ctx.session)
        return types.ListResourcesResult(resources=found)

    async def _list_templates(self, ctx: Any, params: Any) -> types.ListResourceTemplatesResult:
        _first_page(params)
        return types.ListResourceTemplatesResult(resource_templates=list(resources.TEMPLATES))

    async def _read_resource(self, ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        uri = str(params.uri)
        found, mime = await self._ask(ctx, lambda call: resources.read_uri(call, uri))
        meta = {UNTRUSTED: found.untrusted} if found.untrusted else None
        part: types.TextResourceContents | types.BlobResourceContents
        if found.encoding == "utf-8":
            text = heading(found.untrusted) + found.content
            part = types.TextResourceContents(uri=uri, text=text, mime_type=mime, _meta=meta)
        else:
            part = types.BlobResourceContents(uri=uri, blob=found.content, mime_type=mime, _meta=meta)
        return types.ReadResourceResult(contents=[part])

    async def _subscribe(self, ctx: Any, params: types.SubscribeRequestParams) -> types.EmptyResult:
        uri = str(params.uri)
        await self._ask(ctx, lambda call: resources.path_of(uri))
        await self._watching.subscribe(ctx.session, uri)
        return types.EmptyResult()

    async def _unsubscribe(self, ctx: Any, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self._watching.unsubscribe(ctx.session, str(params.uri))
        return types.EmptyResult()

    async def _listened(
        self, ctx: Any, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        uris = [str(uri) for uri in params.notifications.resource_subscriptions or ()]
        await self._ask(ctx, lambda call: [resources.path_of(uri) for uri in uris])
        if uris or params.notifications.resources_list_changed:
            await self._watching.begin()
        with self._watching.wanted(uris):
            return await self._listen(ctx, params)

    # Prompts -------------------------------------------------------------------------------------------------

    async def _list_prompts(self, ctx: Any, params: Any) -> types.ListPromptsResult:
        _first_page(params)
        return types.ListPromptsResult(prompts=prompts.prompts())

    async def _get_prompt(self, ctx: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        text = await self._ask(ctx, lambda call: prompts.filled(call, params.name, dict(params.arguments or {})))
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=_text(text))])

    async def _complete(self, ctx: Any, params: types.CompleteRequestParams) -> types.CompleteResult:
        """Agents for the prompt's `to`, names below a directory for a file's path."""
        typed = params.argument.value

        def possible(call: registry.Call) -> list[str]:
            if isinstance(params.ref, types.PromptReference):
                wanted = params.ref.name == "handoff" and params.argument.name == "to"
                return [each["name"] for each in call.door("entries", path="/tell")] if wanted else []
            if params.argument.name != "path" or params.ref.uri != resources.COMPLETED:
                return []
            directory = typed.rpartition("/")[0]
            where = call.door("locate", path=f"/memory/{directory}")["path"]
            listed = [each for each in call.door("entries", path=where) if each["path"] != where]  # a file lists itself
            above = f"{directory}/" if directory else ""
            return [f"{above}{each['name']}{'/' if each['kind'] == 'directory' else ''}" for each in listed]

        try:
            found = await self._in_thread(lambda: possible(_Call(self._session, ctx)))
        except AvmError:  # a directory that is not there has nothing to offer
            found = []
        fitting = [each for each in found if each.startswith(typed)]
        return types.CompleteResult(
            completion=types.Completion(values=fitting[:100], total=len(fitting), has_more=len(fitting) > 100)
        )

    async def _in_thread(self, do: Callable[[], T], *, waits: bool = False) -> T:
        limiter = self._waits if waits else self._threads
        return await anyio.to_thread.run_sync(do, abandon_on_cancel=True, limiter=limiter)

    async def _ask(self, ctx: Any, question: Any) -> Any:
        """Run in a worker thread; what the memory refuses becomes a protocol error."""
        try:
            return await self._in_thread(lambda: question(_Call(self._session, ctx)))
        except AvmError as e:
            code = types.INTERNAL_ERROR if isinstance(e, (Busy, StoreFailed)) else types.INVALID_PARAMS
            raise MCPError(code, str(e)) from None
        except Exception:  # a defect: its text stays here
            log.exception("%s failed", ctx.method)
            raise MCPError(types.INTERNAL_ERROR, "internal error; the server's stderr has the details") from None


def _reason(error: Exception, path: object) -> str:
    """With the path as the client named it: the tree knows a missing file by its last name alone."""
    if isinstance(error, AvmError) and error.filename and isinstance(path, str) and path.endswith(error.filename):
        return f"{escaped(path)}: {error.reason}"
    return str(error)


def _first_page(params: types.PaginatedRequestParams | None) -> None:
    """Of a list, which has no other. Raises MCPError for a cursor, since none was given out."""
    if params is not None and params.cursor is not None:
        raise MCPError(types.INVALID_PARAMS, visible(f"no such cursor: {params.cursor!r}"))


def _text(text: str) -> types.TextContent:
    return types.TextContent(type="text", text=text)


def _instructions(agent: str, tools: Iterable[str]) -> str:
    """Advice on what is offered."""
    said = "; ".join(each for name, each in ADVICE.items() if name in tools)
    return INSTRUCTIONS.format(agent=agent, advice=f"{said}.\n" if said else "")


def _waiting(session: Session) -> str:
    """A line of the instructions about unread mail, but for what is of low priority; empty when there is none."""
    try:
        unread, _ = session.call("unread", {})
    except AvmError as e:  # the first call will fail as well, and say so to who can do something about it
        log.warning("unread mail could not be counted: %s", e)
        return ""
    if not (count := unread["urgent"] + unread["normal"]):
        return ""
    urgent = f", {unread['urgent']} of them urgent" if unread["urgent"] else ""
    return f"\nWhen this session began, {count} message{'s' * (count > 1)} had come that you have not read{urgent}."


def _urgent(banner: str) -> list[types.TextContent]:
    """Unread urgent mail as a block of its own."""
    if not banner:
        return []
    first = types.Annotations(audience=["assistant", "user"], priority=1.0)
    return [types.TextContent(type="text", text=banner, annotations=first, _meta={URGENT: True})]
