"""Files of the web console (`pybroker/console/`). They require no credentials, because they contain no broker data.

The content security policy of each response prevents that a page loads or runs foreign code, or is framed.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import NamedTuple

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call
from pybroker.admin.calls.routing import route
from pybroker.errors import AdminError

DIRECTORY = Path(__file__).parents[2] / "console"
PAGE = "index.html"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""The last two directives prevent that text is inserted as markup."""
HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",  # stored, and revalidated with each request
}


class _File(NamedTuple):
    body: bytes
    media_type: str
    mark: str


class ConsolePages:
    """Routes of the console's files."""

    def __init__(self) -> None:
        self._files: dict[str, _File] | None = None

    def routes(self) -> list[Route]:
        return [
            route("GET", "/", self.get_root),
            route("GET", "/console", self.get_page),
            route("GET", "/console/{file}", self.get_file),
            route("GET", "/docs", self.get_docs),
        ]

    async def get_root(self, call: Call) -> Response:
        """Redirect browsers to the console. 404 for other clients."""
        if not call.config.console_enabled or "text/html" not in call.headers.get("accept", ""):
            raise AdminError(404, "No such path: /")
        return Response(status_code=302, headers={**HEADERS, "location": "/console/"})

    async def get_page(self, call: Call) -> Response:
        """Return the web console."""
        return await self._answer(call, PAGE)

    async def get_docs(self, call: Call) -> Response:
        """Return the page of the API documentation."""
        return await self._answer(call, PAGE)

    async def get_file(self, call: Call) -> Response:
        """Return a script or style sheet of the console."""
        return await self._answer(call, call.name("file"))

    async def _answer(self, call: Call, name: str) -> Response:
        if not call.config.console_enabled:
            raise AdminError(
                404, "The console is disabled (consoleEnabled=false). The REST API is described by /openapi.json"
            )
        if self._files is None:
            self._files = await asyncio.to_thread(_read_all)
        file = self._files.get(name)
        if file is None:
            raise AdminError(404, f"The console has no file {name[:100]!r}")
        headers = {**HEADERS, "etag": file.mark}
        if file.mark in call.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.body, headers=headers, media_type=file.media_type)


def _read_all() -> dict[str, _File]:
    files = {}
    for path in sorted(DIRECTORY.iterdir()):
        if path.suffix in MEDIA_TYPES:
            body = path.read_bytes()
            files[path.name] = _File(body, MEDIA_TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return files
