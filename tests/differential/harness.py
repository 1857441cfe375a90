"""What a scenario works with: a registry, a trace, the official client, REST and raw frames.

A scenario is a function of one `Run`. It records steps and judges nothing: judging is the comparison of two traces.
Invariant: a scenario touches only topics, tenants and namespaces whose names carry the run's token, so that scenarios
neither meet each other nor what a broker held before.
"""

import base64
import contextlib
import hashlib
import json
import os
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import jwt
import pulsar
from benchmarks.brokers import Broker
from tests.differential.normalise import Json, Normaliser
from tests.support.raw_client import RawClient

RECEIVE_TIMEOUT_MS = 10_000  # a message that is due
ADMIN_ROLE = "admin"
QUIET_MS = 700  # long enough to believe that nothing more comes


@dataclass(frozen=True)
class Step:
    label: str
    value: Json  # normalised
    raw: Json  # as the broker said it


@dataclass
class Scenario:
    name: str
    run: Callable[["Run"], None]
    purpose: str
    is_secured: bool = False  # wants brokers that ask for tokens and check rights
    has_transactions: bool = False  # wants brokers that have coordinators of transactions
    is_proxied: bool = False  # wants brokers that expect PROXY headers


SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Callable[["Run"], None]) -> Callable[["Run"], None]:
    """Register a scenario under the function's name; its docstring says what it pins down."""
    assert function.__doc__, f"{function.__name__} needs a docstring"
    assert function.__name__ not in SCENARIOS, f"two scenarios named {function.__name__}"
    SCENARIOS[function.__name__] = Scenario(function.__name__, function, function.__doc__.strip())
    return function


def secured_scenario(function: Callable[["Run"], None]) -> Callable[["Run"], None]:
    """Register a scenario for brokers that ask for tokens."""
    SCENARIOS[scenario(function).__name__].is_secured = True
    return function


def transaction_scenario(function: Callable[["Run"], None]) -> Callable[["Run"], None]:
    """Register a scenario for brokers that have coordinators of transactions."""
    SCENARIOS[scenario(function).__name__].has_transactions = True
    return function


def proxied_scenario(function: Callable[["Run"], None]) -> Callable[["Run"], None]:
    """Register a scenario for brokers that expect PROXY headers."""
    SCENARIOS[scenario(function).__name__].is_proxied = True
    return function


PROXY_SETTINGS = {"haProxyProtocolEnabled": "true"}
TRANSACTION_SETTINGS = {"transactionCoordinatorEnabled": "true"}


def security_settings(secret: bytes) -> dict[str, str]:
    """Tokens signed with `secret`; who brings none is anonymous.

    The anonymous role is a superuser, as the one that asks the reference broker for its health has no token.
    """
    return {
        "authenticationEnabled": "true",
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
        "tokenSecretKey": f"data:;base64,{base64.b64encode(secret).decode()}",
        "authorizationEnabled": "true",
        "superUserRoles": f"{ADMIN_ROLE},anonymous",
        "anonymousUserRole": "anonymous",
    }


@dataclass
class Run:
    """One scenario on one broker."""

    broker: Broker
    scenario: str
    secret: bytes = b""  # that tokens are signed with
    steps: list[Step] = field(default_factory=list)
    broke: bool = False
    token: str = field(default_factory=lambda: "x" + uuid.uuid4().hex[:8])

    def __post_init__(self) -> None:
        assert self.broker.http_url is not None
        self._closing = contextlib.ExitStack()
        hosts = {self.broker.service_url: "<broker url>", self.broker.http_url: "<http url>"}
        hosts |= {url.split("//")[1]: f"{name[:-5]}>" for url, name in hosts.items()}
        self.normaliser = Normaliser({self.token: "<run>", **hosts})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(pulsar.PulsarException):  # a client that the broker cut off may fail to close
            self._closing.close()

    def step(self, label: str, value: Any) -> None:
        """Record one observation; any JSON-able value."""
        self.steps.append(Step(label, self.normaliser.value(value), value))

    # --- names

    def topic(self, name: str = "topic", namespace: str = "public/default") -> str:
        return f"persistent://{namespace}/{self.token}-{name}"

    def tenant(self, name: str = "tenant") -> str:
        return f"{self.token}-{name}"

    def token_of(self, role: str) -> str:
        """What a role shows to be let in."""
        return jwt.encode({"sub": role}, self.secret, "HS256")

    # --- the official client

    def client(self, service_url: str | None = None, **options: Any) -> pulsar.Client:
        quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        url = service_url or self.broker.service_url
        client = pulsar.Client(url, logger=quiet, operation_timeout_seconds=10, **options)
        self._closing.callback(client.close)
        return client

    def attempt(self, label: str, action: Callable[[], Any]) -> Any:
        """Record `ok` or the name of the client's error; the action's result, None after an error."""
        try:
            result = action()
        except pulsar.PulsarException as error:
            self.step(label, type(error).__name__)
            return None
        self.step(label, "ok")
        return result

    def describe(self, message: Any) -> dict[str, Json]:
        """A received message without what may differ between brokers."""
        data: bytes = message.data()
        identity = message.message_id()
        described: dict[str, Json] = {
            "payload": data.decode() if data.isascii() and len(data) < 200 else _digest(data),
            "properties": dict(sorted(message.properties().items())),
            "redelivery_count": message.redelivery_count(),
            "topic": message.topic_name(),
            "batch_index": identity.batch_index(),
            "position": self.normaliser.position(identity.ledger_id(), identity.entry_id()),
        }
        if message.partition_key():
            described["key"] = message.partition_key()
        if message.ordering_key():
            described["ordering_key"] = message.ordering_key()
        if message.event_timestamp():
            described["event"] = message.event_timestamp()
        return described

    def receive(self, consumer: Any, count: int) -> list[Any]:
        """`count` messages that are due; fewer when the broker does not send them in time."""
        received: list[Any] = []
        with contextlib.suppress(pulsar.Timeout):
            while len(received) < count:
                received.append(consumer.receive(RECEIVE_TIMEOUT_MS))
        return received

    def receive_rest(self, consumer: Any) -> list[Any]:
        """What still arrives until nothing has come for a while."""
        received: list[Any] = []
        with contextlib.suppress(pulsar.Timeout):
            while True:
                received.append(consumer.receive(QUIET_MS))
        return received

    def record_messages(self, label: str, messages: list[Any]) -> None:
        self.step(label, [self.describe(each) for each in messages])

    # --- REST

    def rest(self, label: str, method: str, path: str, body: Any = ..., content_type: str = "application/json") -> Json:
        """Call and record status, content type and body; the body."""
        status, headers, data = self.http(method, path, body, content_type)
        parsed = _parse_body(data)
        kind = (headers.get("Content-Type") or "").split(";")[0]
        self.step(label, {"status": status, "content_type": kind, "body": parsed})
        return parsed

    def rest_status(self, label: str, method: str, path: str, body: Any = ...) -> Json:
        """Call and record the status only, for answers whose body is not an interface; the body."""
        status, _, data = self.http(method, path, body, "application/json")
        self.steps.append(Step(label, status, {"status": status, "body": _parse_body(data)}))
        return _parse_body(data)

    def http(
        self, method: str, path: str, body: Any, content_type: str, token: str | None = None
    ) -> tuple[int, Any, bytes]:
        """A request without redirects; `body` is sent as JSON unless it is bytes; `...` sends none."""
        data = None if body is ... else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.broker.http_url}{path}", data, method=method)
        if data is not None:
            request.add_header("Content-Type", content_type)
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with _NO_REDIRECT.open(request, timeout=30) as response:
                return response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def wait_until_expired(self, topic_path: str, subscription: str, messages: int) -> None:
        """Wait until so many messages of a subscription have expired in all: the reference answers before it begins."""

        def is_done() -> bool:
            stats = json.loads(self.http("GET", f"{topic_path}/stats", ..., "")[2])
            return bool(stats["subscriptions"][subscription]["totalMsgExpired"] == messages)

        assert self.wait_until(is_done), f"the messages of {subscription} did not expire"

    # --- raw frames

    @contextlib.contextmanager
    def raw(self, *, connected: bool = True) -> Iterator[RawClient]:
        """A raw session; connected unless the scenario is about connecting."""
        client = RawClient(self.broker.service_url)
        try:
            if connected:
                client.connect()
            yield client
        finally:
            client.close()

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
        """Poll for an effect that a broker applies asynchronously."""
        deadline_s = time.monotonic() + timeout_s
        while not (held := condition()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return held


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_NO_REDIRECT = urllib.request.build_opener(_NoRedirect)


def _parse_body(data: bytes) -> Json:
    if not data:
        return None
    try:
        parsed: Json = json.loads(data)
        return parsed
    except ValueError:
        text = data.decode(errors="replace")
        # A page made for people is no interface; only that it is one is compared.
        return "<html>" if text.lstrip().lower().startswith(("<html", "<!doctype")) else text


def _digest(data: bytes) -> str:
    return f"{len(data)} bytes {base64.b16encode(hashlib.sha256(data).digest()[:6]).decode()}"
