"""HTTP without a connection: a request is a call of the application, whose answer is put together here."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from pybroker.admin.http.application import ANSWERED_KEY, PEER_CERTIFICATE_KEY, TRANSPORT_KEY
from pybroker.admin.server import HttpServer
from pybroker.broker.service import BrokerService
from pybroker.runtime.tasks import TaskOwner


class _NoTransport:
    """Stands for the connection of a request that nobody cuts."""

    def __init__(self) -> None:
        self.is_aborted = False

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


class DirectHttp:
    """The routes of one broker, created by the first request: most simulations have no administrator."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._server: HttpServer | None = None
        self._tasks = TaskOwner("http")

    @property
    def server(self) -> HttpServer:
        if self._server is None:
            config = self._service.runtime.config
            self._server = HttpServer(self._service, None, self._service.runtime.clock)
            sampling = self._server.rates.run(
                config.stats_update_initial_delay_in_secs, config.stats_update_frequency_in_secs
            )
            self._tasks.start(sampling, "rates")
        return self._server

    async def call(self, method: str, path: str, body: Any, query: dict[str, Any] | None) -> tuple[int, Any]:
        """Status and body, decoded if it is JSON. Raises ConnectionError when the answer was cut off."""
        status, _, answer = await self.exchange(method, path, body, query)
        return status, answer

    async def exchange(self, method: str, path: str, body: Any, query: dict[str, Any] | None) -> tuple[int, str, Any]:
        """Like `call`, with the location of a redirect in the middle."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        transport = _NoTransport()
        answer: dict[str, Any] = {"status": 0, "body": b"", "headers": []}

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer["status"] = message["status"]
                answer["headers"] = message.get("headers", [])
            else:
                answer["body"] += message.get("body", b"")

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        if data:
            headers.append((b"content-length", str(len(data)).encode()))
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": method,
            "raw_path": path.encode(),
            "path": path,
            "root_path": "",
            "query_string": urlencode(query or {}).encode(),
            "headers": headers,
            "client": ("10.0.0.3", 50000),
            "server": ("10.0.0.1", 8080),
            "state": {PEER_CERTIFICATE_KEY: None, TRANSPORT_KEY: transport, ANSWERED_KEY: lambda status: None},
        }
        await self.server._application(scope, receive, send)
        if transport.is_aborted:
            raise ConnectionError("the answer was cut off")
        text = answer["body"]
        location = next((value.decode() for name, value in answer["headers"] if name.lower() == b"location"), "")
        try:
            return answer["status"], location, json.loads(text) if text else None
        except ValueError:
            return answer["status"], location, text

    async def close(self) -> None:
        await self._tasks.close()
        if self._server is not None:
            await self._server.close()
