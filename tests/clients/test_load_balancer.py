"""Clients whose connections come through a TCP load balancer or HTTP proxy, and further addresses of a broker."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.clients.conftest import new_client
from tests.clients.test_listeners import free_port, look_up
from tests.support.broker_process import BrokerProcess
from tests.support.credentials import CertificateAuthority
from tests.support.load_balancer import header_v1, header_v2, load_balancer
from tests.support.raw_client import RawClient, Type
from tests.support.rest import call
from tests.support.secured import tls_settings

TOPIC = "persistent://public/default/balanced"
STATS = "/admin/v2/persistent/public/default/balanced/stats"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("balanced")
    settings = {
        **tls_settings(CertificateAuthority(directory)),
        "haProxyProtocolEnabled": "true",
        "webServiceHaProxyProtocolEnabled": "true",
        "webServiceTrustXForwardedFor": "true",
        "connectCommandTimeoutMs": "1500",
    }
    with BrokerProcess(directory, settings).running_well() as process:
        yield process


def http_url(broker: BrokerProcess, port: int | None = None) -> str:
    return f"http://127.0.0.1:{port or broker.ready['http_port']}"


def publisher_address(broker: BrokerProcess) -> str:
    (publisher,) = call(http_url(broker) + STATS).json["publishers"]
    return str(publisher["address"])


def logged(broker: BrokerProcess, *texts: str) -> str:
    """Wait for a line of the log with all `texts`."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for line in broker.log.read_text().splitlines():
            if all(text in line for text in texts):
                return line
        time.sleep(0.02)
    raise AssertionError(f"not logged: {texts}")


def test_official_client_publishes_through_load_balancer_with_and_without_tls(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    broker = BrokerProcess(tmp_path, {**tls_settings(authority), "haProxyProtocolEnabled": "true"})
    broker.ready = {"broker_port": free_port(), "broker_port_tls": free_port()}
    plain, tls = broker.ready["broker_port"], broker.ready["broker_port_tls"]
    with (
        load_balancer(plain, header_v2("203.0.113.9", 1)) as port,
        load_balancer(tls, header_v1("203.0.113.10", 2)) as port_tls,
    ):
        broker.settings["advertisedListeners"] = (
            f"outside:pulsar://localhost:{port},outside:pulsar+ssl://localhost:{port_tls}"
        )
        with broker.running_well():
            for url, address in (
                (f"pulsar://localhost:{port}", "203.0.113.9:1"),
                (f"pulsar+ssl://localhost:{port_tls}", "203.0.113.10:2"),
            ):
                client = new_client(url, tls_trust_certs_file_path=str(authority.certificate_path))
                consumer = client.subscribe(TOPIC, "s")
                producer = client.create_producer(TOPIC)
                producer.send(b"x")
                assert consumer.receive(30_000).data() == b"x"
                assert publisher_address(broker) == address
                client.close()


@pytest.mark.parametrize(
    ("make", "host"),
    [(header_v1, "203.0.113.7"), (header_v2, "203.0.113.8"), (header_v1, "2001:db8::7"), (header_v2, "2001:db8::8")],
)
def test_rest_call_has_the_address_that_the_load_balancer_sends(
    broker: BrokerProcess, make: Callable[[str, int], bytes], host: str
) -> None:
    path = f"/admin/v2/persistent/public/default/of-{host.replace(':', '-')}"
    with load_balancer(broker.ready["http_port"], make(host, 4242)) as port:
        assert call(http_url(broker, port) + path, "PUT").status == 204
    assert f"address={host}" in logged(broker, "rest.acted", path)


def test_rest_call_through_http_proxy_has_the_address_of_its_client(broker: BrokerProcess) -> None:
    path = "/admin/v2/persistent/public/default/forwarded"
    assert call(http_url(broker) + path, "PUT", headers={"X-Forwarded-For": "203.0.113.20"}).status == 204
    assert "address=203.0.113.20" in logged(broker, "rest.acted", path)


def test_forwarded_address_of_a_trusted_proxy_counts_at_a_port_for_both_protocols(tmp_path: Path) -> None:
    path = "/admin/v2/persistent/public/default/forwarded"
    settings = {"webServiceTrustXForwardedFor": "true", "haProxyProtocolTrustedAddresses": "127.0.0.0/8"}
    with BrokerProcess(tmp_path, {**settings, "bindAddress": "::"}).running_well() as broker:
        assert call(http_url(broker) + path, "PUT", headers={"X-Forwarded-For": "203.0.113.20"}).status == 204
        assert "address=203.0.113.20" in logged(broker, "rest.acted", path)


def test_long_text_in_place_of_a_forwarded_address_is_cut(broker: BrokerProcess) -> None:
    path = "/admin/v2/persistent/public/default/forwarded-text"
    assert call(http_url(broker) + path, "PUT", headers={"X-Forwarded-For": "x" * 5000}).status == 204
    assert f"address={'x' * 64} " in logged(broker, "rest.acted", path)


def closes(broker: BrokerProcess, data: bytes, *, half_close: bool = False) -> bool:
    with socket.create_connection(("127.0.0.1", broker.ready["broker_port"]), timeout=30) as connection:
        connection.sendall(data)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        try:
            return connection.recv(1) == b""
        except ConnectionResetError:
            return True


def test_invalid_unfinished_and_missing_headers_end_their_connection_only(broker: BrokerProcess) -> None:
    assert closes(broker, b"PROXY TCP4 1.2.3.4 nobody 1 2\r\n")
    assert "invalid IPv4 address" in logged(broker, "client.refused", "haProxyProtocol")
    assert closes(broker, b"PROXY TCP4 1.2.3.4 1.2.3.4", half_close=True)
    assert closes(broker, b"PROXY TCP4 1.2.3.4 1.2.3.4"), "the header does not end within connectCommandTimeoutMs"
    assert closes(broker, b""), "neither header nor data within connectCommandTimeoutMs"
    assert closes(broker, header_v2("1.2.3.4", 5) + header_v2("1.2.3.4", 5)), "a second header is no frame"
    client = new_client(broker.url)  # a direct connection needs no header
    client.create_producer(TOPIC).send(b"x")
    client.close()


def test_header_of_untrusted_address_ends_the_connection(tmp_path: Path) -> None:
    settings = {"haProxyProtocolEnabled": "true", "haProxyProtocolTrustedAddresses": "10.0.0.0/8,192.0.2.1"}
    with BrokerProcess(tmp_path, settings).running_well() as broker:
        assert closes(broker, header_v1("203.0.113.7", 1))
        assert "127.0.0.1, which is not in haProxyProtocolTrustedAddresses" in logged(broker, "client.refused")
        client = new_client(broker.url)
        client.create_producer(TOPIC).send(b"x")
        client.close()


def test_connections_that_wait_for_a_header_are_bounded_and_keep_no_client_out(tmp_path: Path) -> None:
    settings = {"haProxyProtocolEnabled": "true", "maxConnectionsBeforeConnect": "8"}
    with BrokerProcess(tmp_path, settings).running_well() as broker:
        silent = [socket.create_connection(("127.0.0.1", broker.ready["broker_port"])) for _ in range(64)]
        client = new_client(broker.url)
        client.create_producer(TOPIC).send(b"x")
        client.close()
        silent[0].settimeout(30)
        assert silent[0].recv(1) == b"", "displaced by a newer connection"
        for each in silent:
            each.close()


@pytest.mark.parametrize("is_proxied", ["true", "false"])
def test_connections_in_the_tls_handshake_are_bounded(tmp_path: Path, is_proxied: str) -> None:
    settings = {
        **tls_settings(CertificateAuthority(tmp_path)),
        "haProxyProtocolEnabled": is_proxied,
        "maxConnectionsBeforeConnect": "8",
        "connectCommandTimeoutMs": "600000",
    }
    with BrokerProcess(tmp_path, settings).running_well() as broker:
        address = ("127.0.0.1", broker.ready["broker_port_tls"])
        with contextlib.ExitStack() as stack:
            silent = []
            for _ in range(9):
                silent.append(stack.enter_context(socket.create_connection(address, timeout=30)))
                silent[-1].sendall(header_v1("203.0.113.7", 1) if is_proxied == "true" else b"\x16\x03")
            try:
                received = silent[0].recv(1)
            except ConnectionResetError:
                received = b""
            assert received == b"", "displaced by the ninth connection"


def test_lookup_at_a_further_address_returns_the_listener_of_that_address(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    broker = BrokerProcess(tmp_path, tls_settings(authority))
    inside, outside, outside_tls = free_port(), free_port(), free_port()
    broker.ready = {"broker_port": inside}
    broker.settings |= {
        "advertisedListeners": f"inside:pulsar://127.0.0.1:{inside},outside:pulsar://localhost:{outside},"
        f"outside:pulsar+ssl://localhost:{outside_tls}",
        "internalListenerName": "inside",
        "bindAddresses": f"outside:pulsar://127.0.0.1:{outside},outside:pulsar+ssl://127.0.0.1:{outside_tls}",
    }
    with broker.running_well():
        assert look_up(broker)["brokerServiceUrl"] == f"pulsar://127.0.0.1:{inside}"
        client = RawClient(f"pulsar://127.0.0.1:{outside}")
        client.connect()
        found = client.request(Type.LOOKUP, topic=TOPIC)
        assert found["brokerServiceUrl"] == f"pulsar://localhost:{outside}"
        asked = client.request(Type.LOOKUP, topic=TOPIC, advertised_listener_name="inside")
        assert asked["brokerServiceUrl"] == f"pulsar://127.0.0.1:{inside}"
        client.close()
        for url in (f"pulsar://localhost:{outside}", f"pulsar+ssl://localhost:{outside_tls}"):
            official = new_client(url, tls_trust_certs_file_path=str(authority.certificate_path))
            official.create_producer(TOPIC).send(b"x")
            official.close()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"bindAddresses": "outside:http://127.0.0.1:1"}, "bindAddresses has 'outside:http://127.0.0.1:1'"),
        ({"bindAddresses": "127.0.0.1:1"}, "expected listener:pulsar://host:port"),
        ({"bindAddresses": "b:pulsar://127.0.0.1:1"}, "names listener 'b', which advertisedListeners does not have"),
        ({"haProxyProtocolTrustedAddresses": "lb.example"}, "haProxyProtocolTrustedAddresses: 'lb.example'"),
    ],
)
def test_wrong_address_is_refused_at_start(tmp_path: Path, settings: dict[str, str], text: str) -> None:
    broker = BrokerProcess(tmp_path, settings)
    with pytest.raises(RuntimeError, match=re.escape(text)):
        broker.start()


def test_further_address_in_use_is_named_at_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        number = used.getsockname()[1]
        settings = {
            "bindAddresses": f"a:pulsar://127.0.0.1:{number}",
            "advertisedListeners": f"a:pulsar://localhost:{number}",
        }
        with pytest.raises(RuntimeError, match=rf"127\.0\.0\.1 port {number} \(bindAddresses\)"):
            BrokerProcess(tmp_path, settings).start()
