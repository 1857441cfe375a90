"""The example of the guide "Write your own authentication and authorization", installed and used."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from tests.support import plugin_packages
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import RawClient
from tests.support.rest import call

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "own-providers.md"
KEYS = {role: f"key of {role}" for role in ("operator", "orders.admin", "orders.writer", "orders.reader")}


def block(title: str) -> str:
    found = re.search(rf'```\w+ title="{re.escape(title)}"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def properties() -> dict[str, str]:
    found = re.search(r"```properties\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return dict(line.split("=", 1) for line in found[1].splitlines())


PERMISSIONS = {
    "operator": ["superuser"],
    "orders.admin": ["orders:administer"],
    "orders.writer": ["orders:produce", "orders:consume"],
    "orders.reader": ["orders:consume"],
}
TIMEOUT_MS = 300


class Service(http.server.ThreadingHTTPServer):
    """The company's service of permissions."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.permissions = {role: list(permissions) for role, permissions in PERMISSIONS.items()}
        self.asked: Counter[str] = Counter()
        self.status = 200
        self.may_answer = threading.Event()
        self.may_answer.set()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Service

    def do_GET(self) -> None:
        role = unquote(self.path[1:])
        self.server.asked[role] += 1
        self.server.may_answer.wait(10)
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(json.dumps(self.server.permissions.get(role, [])).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service() as service:
        thread = threading.Thread(target=service.serve_forever, daemon=True)
        thread.start()
        yield service
        service.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, service: Service) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("own")
    points = tomllib.loads(block("pyproject.toml"))["project"]["entry-points"]
    plugins = plugin_packages.install(directory / "plugins", "company_access", block("company_access.py"), points)
    keys = directory / "keys"
    keys.write_text("".join(f"{role} {hashlib.sha256(key.encode()).hexdigest()}\n" for role, key in KEYS.items()))
    process = BrokerProcess(directory, properties() | {"authorizationTimeoutMillis": str(TIMEOUT_MS)})
    process.environment = {
        "PYTHONPATH": f"{plugins}:src",
        "COMPANY_API_KEYS": str(keys),
        "COMPANY_TEAMS": f"127.0.0.1:{service.server_port}",
    }
    with process.running():
        for path in ("tenants/orders", "namespaces/orders/eu"):
            body = {"allowedClusters": ["standalone"]} if path.startswith("tenants") else None
            assert rest(process, "PUT", f"/admin/v2/{path}", "operator", body) == 204
        yield process


def rest(process: BrokerProcess, method: str, path: str, role: str, body: object = None) -> int:
    url = str(process.ready["http_url"]) + path
    return call(url, method, body=body, headers={"Authorization": f"apikey {KEYS.get(role, 'wrong')}"}).status


def connected(process: BrokerProcess, key: str) -> RawClient:
    client = RawClient(str(process.ready["broker_url"]))
    client.connect(auth_method_name="apikey", auth_data=key.encode())
    return client


def test_rights_of_the_example_are_enforced(broker: BrokerProcess) -> None:
    topic = "persistent://orders/eu/t"
    writer, reader = (connected(broker, KEYS[f"orders.{kind}"]) for kind in ("writer", "reader"))
    assert writer.open_producer(topic)["type"] == "PRODUCER_SUCCESS"
    assert reader.subscribe(topic)["type"] == "SUCCESS"
    assert reader.open_producer(topic)["error"] == "AuthorizationError"
    assert writer.open_producer("persistent://public/default/t", 2)["error"] == "AuthorizationError"
    writer.close()
    reader.close()
    assert rest(broker, "GET", "/admin/v2/namespaces/orders", "orders.admin") == 200
    assert rest(broker, "GET", "/admin/v2/namespaces/orders", "orders.writer") == 401
    assert rest(broker, "GET", "/admin/v2/tenants", "orders.admin") == 401


def test_service_is_asked_for_a_producer_and_not_for_its_messages(broker: BrokerProcess, service: Service) -> None:
    writer = connected(broker, KEYS["orders.writer"])
    assert writer.open_producer("persistent://orders/eu/messages")["type"] == "PRODUCER_SUCCESS"
    asked = service.asked["orders.writer"]
    for sequence_id in range(10):
        writer.send_message(1, sequence_id)
        assert writer.reply()["type"] == "SEND_RECEIPT"
    assert service.asked["orders.writer"] <= asked + 1, "at most one more, whether the role is a superuser"
    writer.close()


def test_service_that_fails_or_hangs_grants_nothing_and_recovers(broker: BrokerProcess, service: Service) -> None:
    writer = connected(broker, KEYS["orders.writer"])
    topic = "persistent://orders/eu/unsteady"
    service.status = 500
    assert writer.open_producer(topic)["error"] == "ServiceNotReady"
    assert rest(broker, "GET", "/admin/v2/tenants", "operator") == 503
    service.status = 200
    service.may_answer.clear()
    assert writer.open_producer(topic)["error"] == "ServiceNotReady"
    assert rest(broker, "GET", "/admin/v2/tenants", "operator") == 503
    service.may_answer.set()
    assert writer.open_producer(topic)["type"] == "PRODUCER_SUCCESS"
    assert rest(broker, "GET", "/admin/v2/tenants", "operator") == 200
    writer.close()


def test_unknown_key_is_refused_and_counted(broker: BrokerProcess) -> None:
    assert rest(broker, "GET", "/admin/v2/tenants", "unknown") == 401
    metrics = call(str(broker.ready["http_url"]) + "/metrics").text
    assert 'provider_name="ApiKeys",auth_method="apikey",reason="UNKNOWN_API_KEY"} 1' in metrics
