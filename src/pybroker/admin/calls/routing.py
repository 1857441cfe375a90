"""REST routes. The handler of a route receives a `Call` and returns a response; `HandlerApp` makes it an ASGI
application.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pybroker.admin.calls import unsupported_settings
from pybroker.admin.calls.call import Call
from pybroker.admin.calls.redirects import elsewhere
from pybroker.admin.calls.served_at import ServedAt, served_at
from pybroker.admin.calls.unsupported_settings import Asks
from pybroker.errors import AdminError
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.admin.calls.queries import Query

Handler = Callable[[Call], Awaitable[Response]]


class HandlerApp:
    """ASGI application of one handler."""

    def __init__(
        self,
        handler: Handler,
        body: Any,
        queries: Sequence[Query],
        answers: Mapping[int, str],
        unserved_subjects: tuple[tuple[str, Asks], ...],
        place: ServedAt,
    ) -> None:
        self.handler = handler
        self.body = body
        self.queries = queries
        self.answers = answers
        self.place = place
        self._unserved_subjects = unserved_subjects

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive)
        response = None
        if call.broker.ownership is not None and "namespace" in scope["path_params"]:
            with suppress(AdminError):  # The handler refuses an invalid name.
                await call.resources.read_missing(call.namespace_name())
        if call.broker.ownership is not None and self.place is not ServedAt.ANY:
            response = await elsewhere(call, call.broker.ownership, self.place)
        if response is None:
            response = await self.handler(call)
        if self._unserved_subjects and response.status_code < 300:
            self._warn(call, response)
        await response(scope, receive, send)

    def _warn(self, call: Call, response: Response) -> None:
        subjects = [subject for subject, asks in self._unserved_subjects if asks(call, call.given)]
        if subjects:
            warnings = (f'299 pybroker "stored without effect: {subject}"' for subject in subjects)
            response.headers["Warning"] = ", ".join(warnings)
        for subject in subjects:
            logs.warning("setting.without_effect", subject=subject, path=call.scope["path"], role=call.role)


def route(
    method: str,
    path: str,
    handler: Handler,
    *,
    body: Any = None,
    queries: Sequence[Query] = (),
    answers: Mapping[int, str] | None = None,
) -> Route:
    """Create the route of `handler` for one method and path. The handler must not block the event loop.

    `body` (type of the body), `queries`, and `answers` (meaning of each status) are used only for the OpenAPI document.
    """
    app = HandlerApp(
        handler, body, queries, answers or {}, unsupported_settings.of(method, path), served_at(method, path)
    )
    return Route(path, app, methods=[method])
