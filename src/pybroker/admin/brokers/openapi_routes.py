"""`/openapi.json`: description of this broker's REST API. The console shows it at `/docs`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from pybroker.admin.calls.call import Call
from pybroker.admin.calls.openapi_document import Json, document
from pybroker.admin.calls.routing import route
from pybroker.version import __version__


class OpenApiRoutes:
    """Route of the OpenAPI document, which is generated at the first request."""

    def __init__(self, others: Sequence[BaseRoute]) -> None:
        self._others = others

    def routes(self) -> list[Route]:
        return [route("GET", "/openapi.json", self.get_document)]

    async def get_document(self, _call: Call) -> Response:
        """Return the REST API as an OpenAPI document."""
        return Response(msgspec.json.encode(self._document), media_type="application/json")

    @cached_property
    def _document(self) -> Json:
        return document([*self._others, *self.routes()], __version__)
