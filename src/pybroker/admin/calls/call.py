"""One REST call: names in the path, query, body, and the permissions of its role.

Raises AdminError or BrokerError, which `application.py` converts to an error response.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, unquote, unquote_plus

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope

from pybroker.admin.calls.http_limits import SMALL_BYTES
from pybroker.admin.calls.message_id import ResetCursorData
from pybroker.auth.refused_accesses import Interface, RefusedAccess, cause_of
from pybroker.errors import AdminError, AuthorizationError, InvalidTopicName
from pybroker.model import policies
from pybroker.model.names import DOMAINS, NamespaceName, TopicName
from pybroker.model.position import EARLIEST, LATEST, Position
from pybroker.waiting.fair_shares import Holder

if TYPE_CHECKING:
    from pybroker.admin.calls.http_limits import Share
    from pybroker.auth.authentication import Identity
    from pybroker.auth.proxied_role import Principal
    from pybroker.broker.service import BrokerService
    from pybroker.config import BrokerConfig
    from pybroker.metadata.resources import Resources
    from pybroker.runtime.runtime import Runtime

MAX_DIGITS = 64
"""Maximum length of a number in a path or query."""
QUICK_DOCUMENT_BYTES = 4096
"""Larger documents can take over a millisecond to decode, so they are decoded in a thread."""
FREE_VALUES = 1000
SMALLEST_VALUE_BYTES = 5
"""Minimum average size of bracketed values, beyond the first `FREE_VALUES`. An empty list of 3 bytes takes 60 bytes of
memory.
"""

# Keys of the ASGI scope, set by `application.py`.
BROKER_KEY = "pybroker.broker"
IDENTITY_KEY = "pybroker.identity"
SHARE_KEY = "pybroker.share"

STREAMED_KEY = "pybroker.streamed"
"""Marks the start of a response of known length that is never in memory as a whole."""

_FORM_ENCODED = frozenset({"topic", "subscription"})
_ENDS = {b'"earliest"': EARLIEST, b'"latest"': LATEST}
_MAYBE_ENCODED_TWICE = frozenset({"subscription"})

T = TypeVar("T")


class BadBody(Exception):
    """The request body is not the expected JSON: status 400 with plain text."""


class ClientGone(Exception):
    """The client has disconnected, or does not read its response."""


class Call:
    """One REST call, from routing to response."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.broker: BrokerService = scope[BROKER_KEY]
        self.runtime: Runtime = self.broker.runtime
        self.headers = Headers(scope=scope)
        self.share: Share = scope[SHARE_KEY]
        self._receive = receive
        self._identity: Identity = scope[IDENTITY_KEY]
        self._query: dict[str, str] | None = None
        self.raw_body = b""
        """The body; empty until it is read."""
        self.given: Any = None
        """Decoded body; None until it is read."""

    @property
    def config(self) -> BrokerConfig:
        return self.runtime.config

    @property
    def resources(self) -> Resources:
        return self.broker.resources

    @property
    def role(self) -> str | None:
        return self._identity.role

    @property
    def principal(self) -> Principal:
        """Return the client's role for authorization, with the role of the proxy through which the client connects, if
        there is one.
        """
        return self._identity.principal

    @property
    def expires_at_s(self) -> float | None:
        """Unix time at which the client's credentials expire; None if never."""
        return self._identity.expires_at_s

    @property
    def original_principal(self) -> str:
        """The client's role if the call comes through a proxy; "" otherwise."""
        return "" if self._identity.proxy_role is None else self._identity.role or ""

    @property
    def auth_method(self) -> str:
        """The method with which the client has authenticated; `none` without authentication."""
        return self._identity.method

    @property
    def holder(self) -> Holder:
        """Return the account to which queued requests and limited resources of this call are charged: its role, or the
        client's address if the call has no role.
        """
        return self.share.holder

    def name(self, key: str) -> str:
        """Return the decoded path segment of the route parameter `key`.

        An encoded slash is part of the name, and a plus is a space, because admin tools encode names like form data.
        Subscription names are decoded twice, because the Java admin client encodes them twice.
        """
        text: str = self.scope["path_params"][key]
        decoded = unquote_plus if key in _FORM_ENCODED else unquote
        try:
            name = decoded(text, errors="strict")
        except UnicodeDecodeError as error:
            raise AdminError(400, f"The path segment {text!r} is not UTF-8: percent-encode names as UTF-8") from error
        return _decoded_again(name) if key in _MAYBE_ENCODED_TWICE else name

    def namespace_name(self) -> NamespaceName:
        try:
            return NamespaceName.parse(f"{self.name('tenant')}/{self.name('namespace')}")
        except InvalidTopicName as error:
            raise AdminError(412, "Namespace name is not valid") from error

    def topic_name(self) -> TopicName:
        return self.topic_name_of(self.domain())

    def topic_name_of(self, domain: str) -> TopicName:
        """Return the name of the path's topic in `domain`, for paths that do not contain the domain. Raises AdminError
        412 if the name is invalid.
        """
        names = (self.name(key) for key in ("tenant", "namespace", "topic"))
        try:
            return TopicName.parse(f"{domain}://{'/'.join(names)}")
        except InvalidTopicName as error:
            raise AdminError(412, f"Topic name is not valid: {error}") from error

    def domain(self) -> str:
        """Return the topic domain in the path. Raises AdminError 404 if it is unknown."""
        domain = self.name("domain")
        if domain not in DOMAINS:
            raise AdminError(404, f"Topic domain {domain!r} does not exist: use {' or '.join(DOMAINS)}")
        return domain

    @property
    def is_of_topic(self) -> bool:
        return "topic" in self.scope["path_params"]

    def integer(self, key: str) -> int:
        """Return the 64-bit integer in the path segment `key`. Raises AdminError 404 for other text, as for an unknown
        path.
        """
        number = _integer(self.name(key))
        if number is None:
            raise AdminError(404, f"The path segment {key} is {self.name(key)!r}: expected a 64-bit integer")
        return number

    def query_integer(self, key: str, default: int) -> int:
        """Return the 64-bit integer of the query parameter `key`, or `default` if the parameter is absent. Raises
        AdminError 404 for other text.
        """
        text = self.query(key)
        number = default if text is None else _integer(text)
        if number is None:
            raise AdminError(404, f"The query parameter {key} is {text!r}: expected a 64-bit integer")
        return number

    def query(self, key: str) -> str | None:
        if self._query is None:
            pairs = parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True)
            self._query = dict(reversed(pairs))
        return self._query.get(key)

    def queries(self, key: str) -> list[str]:
        pairs = parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        return [value for name, value in pairs if name == key]

    def flag(self, key: str) -> bool:
        return (self.query(key) or "").lower() == "true"

    async def look(self, steps: Generator[None, None, T]) -> T:
        """Run `steps`, a generator that yields between short steps of a long query, and return its result. Other tasks
        run in between. Raises AdminError 503 if too many queries wait, or if this query waits too long.
        """
        return await self.share.look(steps, self.runtime.clock)

    async def body(self, *, is_content: bool = True) -> bytes:
        """Read the request body. Messages and schemas (`is_content`) may be larger than other bodies. Raises AdminError
        413 if the body is too large, 408 if it does not arrive in time, 503 if no memory becomes free, and ClientGone.
        """
        key, limit = "maxHttpRequestBodyBytes", self.config.max_http_request_body_bytes
        if not is_content and self.config.max_http_document_bytes < limit:
            key, limit = "maxHttpDocumentBytes", self.config.max_http_document_bytes
        declared = self.headers.get("content-length", "0")
        # A declared length is checked before reading, a chunked body while it arrives.
        if declared.isdigit() and int(declared) > limit:
            raise AdminError(413, f"The request body is larger than {key} ({limit} bytes)")
        body = bytearray()
        has_room = False
        timeout_s = self.config.http_body_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                if declared.isdigit() and int(declared) > SMALL_BYTES:
                    await self.share.of_requests(int(declared))
                    has_room = True
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise AdminError(413, f"The request body is larger than {key} ({limit} bytes)")
                    if not message.get("more_body", False):
                        self.raw_body = bytes(body)
                        return self.raw_body
                    if len(body) > SMALL_BYTES and not has_room:  # chunked body of unknown length
                        await self.share.of_requests(limit)
                        has_room = True
        except TimeoutError as error:
            raise AdminError(
                408, f"The request body did not arrive within {timeout_s:g} s: send the request again"
            ) from error

    async def optional_json(self, body_type: type[T], *, is_content: bool = False) -> T | None:
        """Return the decoded body, or None if the body is empty or `null`. With `is_content`, the body may be as large
        as a message. Raises BadBody if the body is not JSON of `body_type`, and the errors of `body`.
        """
        return await self._document(await self.body(is_content=is_content), body_type)

    async def _document(self, body: bytes, body_type: type[T]) -> T | None:
        if len(body) <= QUICK_DOCUMENT_BYTES:
            return self._decoded(body, body_type)
        async with self.share.of_documents(len(body)):
            return await asyncio.to_thread(self._decoded, body, body_type)

    def _decoded(self, body: bytes, body_type: type[T]) -> T | None:
        if not body.strip():
            return None
        opened = body.count(b"[") + body.count(b"{")
        if opened > FREE_VALUES and len(body) < opened * SMALLEST_VALUE_BYTES:
            raise BadBody("the request body cannot be decoded: its JSON has too many arrays and objects for its size")
        try:
            given = msgspec.json.decode(body)
            if given is None:
                return None
            value = policies.converted(given, body_type)
            if self.config.http_requests_fail_on_unknown_properties_enabled:
                _refuse_unknown_fields(given, value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadBody(str(error)) from error
        except RecursionError as error:
            raise BadBody("the request body cannot be decoded: its JSON is nested too deeply") from error
        self.given = value
        return value

    async def text(self) -> str:
        """Return the body as text: a decoded JSON string, or unquoted UTF-8 text, which the Java admin client sends.
        Return "" without a body. Raises BadBody for an invalid JSON string or invalid UTF-8, and the errors of `body`.
        """
        body = (await self.body(is_content=False)).strip()
        try:
            return msgspec.json.decode(body, type=str) if body.startswith(b'"') else body.decode()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadBody(str(error)) from error

    async def json(self, body_type: type[T], *, is_content: bool = False) -> T:
        """Return the decoded body. With `is_content`, the body may be as large as a message. Raises BadBody if the body
        is empty, `null`, or not JSON of `body_type`, and the errors of `body`.
        """
        return _required(await self.optional_json(body_type, is_content=is_content))

    async def optional_place(self) -> ResetCursorData | None:
        """Return the message id in the body (also `earliest` or `latest`); None without a body. Raises BadBody for
        other content.
        """
        body = await self.body(is_content=False)
        end = _ENDS.get(body.strip())
        if end is not None:
            return ResetCursorData(end.ledger_id, end.entry_id)
        return await self._document(body, ResetCursorData)

    async def place(self) -> Position:
        return _required(await self.optional_place()).position

    @property
    def is_from_this_host(self) -> bool:
        client = self.scope["client"]
        try:
            return client is not None and ipaddress.ip_address(client[0]).is_loopback
        except ValueError:
            return False

    async def require_superuser(self) -> None:
        with _refused_with(401):
            await self.broker.broker_context.authorization.require_superuser(self.principal)

    async def require_tenant_admin(self, tenant: str) -> None:
        """Check that the role administers `tenant`. Raises AdminError 401 otherwise. The error does not reveal whether
        the tenant exists.
        """
        with _refused_with(401):
            await self.broker.broker_context.authorization.require_tenant_admin(tenant, self.principal)

    async def require_admin_within(self, tenant: str) -> None:
        with self._refused_within(tenant, 401):
            await self.broker.broker_context.authorization.require_tenant_admin(tenant, self.principal)

    async def require_lookup(self, topic: TopicName) -> None:
        with self._refused_within(topic.tenant, 401):
            await self.broker.broker_context.authorization.require_lookup(topic, self.principal)

    async def require_produce(self, topic: TopicName) -> None:
        with self._refused_within(topic.tenant, 401):
            await self.broker.broker_context.authorization.require_produce(topic, self.principal)

    async def require_consume(self, topic: TopicName, subscription: str) -> None:
        with self._refused_within(topic.tenant, 401):
            await self.broker.broker_context.authorization.require_consume(topic, subscription, self.principal)

    async def require_topic_admin(self, topic: TopicName) -> None:
        with self._refused_within(topic.tenant, 401):
            await self.broker.broker_context.authorization.require_namespace_admin(topic.namespace, self.principal)

    async def require_namespace_admin(self, namespace: NamespaceName) -> None:
        with self._refused_within(namespace.tenant, 403):
            await self.broker.broker_context.authorization.require_namespace_admin(namespace, self.principal)

    async def require_list_topics(self, namespace: NamespaceName) -> None:
        with self._refused_within(namespace.tenant, 403):
            await self.broker.broker_context.authorization.require_list_topics(namespace, self.principal)

    def record_refusal(self, target: str, error: AdminError) -> None:
        """Write an audit record if `error` is a refusal of access. `target`: the part of the request to which access
        was refused, such as one of several topics. The call itself may succeed.
        """
        cause = cause_of(error)
        if cause is not None:
            client = self.scope["client"]
            host = client[0] if client else ""
            self.broker.refused_accesses.record(
                RefusedAccess(
                    Interface.HTTP,
                    cause,
                    self.principal,
                    host,
                    self.scope["method"],
                    target,
                    str(error.status),
                    error.reason,
                )
            )

    @contextmanager
    def _refused_within(self, tenant: str, status: int) -> Iterator[None]:
        with _refused_with(status):
            try:
                yield
            except AuthorizationError as error:
                if self.resources.tenant(tenant) is None:
                    raise AdminError(404, "Tenant does not exist") from error
                raise


def json_response(value: object) -> Response:
    """Return a response with `value` as JSON, without members that are None."""
    return Response(policies.encode(value), media_type="application/json")


def json_with_nulls(value: object) -> Response:
    """Return a response with `value` as JSON, in which None becomes null, which means unknown."""
    return Response(msgspec.json.encode(value), media_type="application/json")


def text_response(text: str, media_type: str = "text/plain") -> Response:
    return Response(text, media_type=media_type)


def no_content() -> Response:
    return Response(status_code=204)


def empty_ok() -> Response:
    """Return 200 without a body, as Pulsar does after some changes."""
    return Response(status_code=200)


@contextmanager
def _refused_with(status: int) -> Iterator[None]:
    """Convert an authorization error to `status`.

    As in Pulsar: 403 for namespaces, policies, and creation and deletion of topics; 401 for clusters, tenants and other
    topic operations.
    """
    try:
        yield
    except AuthorizationError as error:
        raise AdminError(status, str(error)) from error


def _required(value: T | None) -> T:
    if value is None:
        raise BadBody("the request needs a JSON body")
    return value


def _decoded_again(name: str) -> str:
    try:
        return unquote_plus(name, errors="strict")
    except UnicodeDecodeError:
        return name


def _integer(text: str) -> int | None:
    # Check first: Python's conversion takes quadratic time.
    if len(text) > MAX_DIGITS:
        return None
    try:
        number = int(text)
    except ValueError:
        return None
    return number if -(1 << 63) <= number < 1 << 63 else None


def _refuse_unknown_fields(given: Any, value: object) -> None:
    if isinstance(value, msgspec.Struct):
        fields = {field.encode_name: field.name for field in msgspec.structs.fields(value)}
        unknown = sorted(given.keys() - fields.keys())
        if unknown:
            raise BadBody(f"the JSON in the request body has unknown members: {', '.join(unknown)}")
        pairs: Iterable[tuple[Any, object]] = ((given[key], getattr(value, fields[key])) for key in given)
    elif isinstance(value, dict):
        pairs = ((given[str(key)], member) for key, member in value.items())
    elif isinstance(value, list):
        pairs = zip(given, value, strict=True)
    else:
        return
    for given_member, member in pairs:
        if given_member is not None:  # null selects the default
            _refuse_unknown_fields(given_member, member)
