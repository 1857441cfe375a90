"""REST client of the commands. A request that changes something is sent only once. Errors contain no credentials."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlencode

from pybroker.cli.exit_codes import CommandFailed, WrongUsage
from pybroker.cli.nearest_names import NotListed, advice_for
from pybroker.cli.which_broker import Where
from pybroker.client.failures import ClientError
from pybroker.client.rest import Interrupted, Refused, RestClient, reason_of
from pybroker.model.names import NamespaceName, TopicName

PATIENCE_S = 3.0
"""Seconds for which a call that changes nothing is retried while the broker is busy."""
MAX_PAGE = 1000
NOT_FOUND = 404
_NO_REASON = "Not Found"
"""The reason that servers return for an unknown path."""
Query = Mapping[str, object]


class NotThere(CommandFailed):
    """The broker responded with 404."""

    def __init__(self, text: str, path: str = "", advice: str = "") -> None:
        super().__init__(text)
        self.path = path
        self.advice = advice

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}. {self.advice}" if self.advice else text


class Answer(NamedTuple):
    """A response of the broker: headers with lower-case names, and the body."""

    headers: Mapping[str, str]
    body: bytes


class AdminRest:
    """REST client of one command, a context manager.

    If a NotThere error leaves the context, further requests look for the mistyped name, and a suggestion is added to
    the error.
    """

    def __init__(self, where: Where) -> None:
        if where.access.admin_url is None:
            raise WrongUsage(f"{where.source}: the HTTP address of the broker is unknown: add --url http://HOST:PORT")
        self._source = where.source
        self._rest = RestClient(where.access, PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, NotThere) and not error.advice:
                with suppress(ClientError, OSError, http.client.HTTPException, ValueError):
                    error.advice = advice_for(error.path, self._list)
        finally:
            self._rest.close()

    def _list(self, path: str) -> Any:
        try:
            return self._rest.json("GET", path, patience_s=0)
        except Refused as error:
            if error.status == NOT_FOUND:
                raise NotListed from None
            raise

    def get(self, path: str, query: Query | None = None) -> Any:
        with self._failures_of(path):
            return self._rest.json("GET", path + _text_of(query))

    def change(self, method: str, path: str, body: object = None, query: Query | None = None) -> Any:
        """Send a request that changes something, only once. Return the decoded JSON response; None if it is empty."""
        with self._failures_of(path):
            return self._rest.json(method, path + _text_of(query), body, may_repeat=False, patience_s=0)

    def call(self, method: str, path: str, body: object = None) -> Answer:
        """Send a request with any method. Only GET is retried. Return the response's headers and body."""
        data = None if body is None else json.dumps(body).encode()
        with self._failures_of(path), self._rest.open(method, path, data, may_repeat=method == "GET") as response:
            return Answer({name.lower(): value for name, value in response.getheaders()}, response.read())

    def pages(
        self, path: str, member: str, query: Query, limit: int
    ) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """Yield the pages of a list: the response, and the items in its JSON member `member`; at most `limit` items in
        total.
        """
        after: object = None
        while True:
            answer = self.get(path, {**query, "limit": min(limit, MAX_PAGE), "after": after})
            items = answer[member][:limit]
            yield answer, items
            after = answer.get("next")
            limit -= len(items)
            if after is None or limit <= 0:
                return

    def partitions(self, topic: TopicName) -> list[TopicName]:
        if topic.partition_index >= 0:
            return [topic]
        count = int(self.get(f"{path_of(topic)}/partitions")["partitions"])
        return [topic.partition(index) for index in range(count)] or [topic]

    @contextmanager
    def _failures_of(self, path: str) -> Iterator[None]:
        try:
            yield
        except Refused as error:
            advice = _ADVICE.get(error.status, "")
            if error.status == NOT_FOUND and error.reason == _NO_REASON:
                advice = (
                    "; the server is not a pybroker broker of this version, which `explain` and related commands need"
                )
            text = f"{self._rest.where} answered {error.status}: {error.reason}{advice.format(source=self._source)}"
            raise (NotThere(text, path) if error.status == NOT_FOUND else CommandFailed(text)) from error
        except ClientError as error:
            raise CommandFailed(f"{error}{_HINT if isinstance(error, Interrupted) else ''}") from error
        except (OSError, http.client.HTTPException) as error:
            raise CommandFailed(f"{self._rest.where} did not respond: {reason_of(error)}{_HINT}") from error


_HINT = ". Check that a broker is running there, or set another address with --url or PULSAR_ADMIN_URL."
_ADVICE = {
    401: " ({source}); give credentials with --token-file, PULSAR_TOKEN, or a profile",
    403: " ({source}); grant the role the permission, or use the credentials of another role",
}


def path_of(topic: TopicName) -> str:
    """Return the path prefix of the topic's REST calls."""
    return f"/admin/v2/{topic.domain}/{_quoted(topic.tenant, topic.namespace.local_name, topic.local_name)}"


def subscription_path(topic: TopicName, subscription: str) -> str:
    return f"{path_of(topic)}/subscription/{_quoted(subscription)}"


def namespace_path(namespace: NamespaceName) -> str:
    return _quoted(namespace.tenant, namespace.local_name)


def lookup_path(topic: TopicName) -> str:
    return f"/lookup/v2/topic/{topic.domain}/{_quoted(topic.tenant, topic.namespace.local_name, topic.local_name)}"


def _quoted(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)


def _text_of(query: Query | None) -> str:
    kept = {name: _value(value) for name, value in (query or {}).items() if value is not None}
    return f"?{urlencode(kept)}" if kept else ""


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
