"""What a lookup answers: the advertised address, or the listener that a client names, so that a broker is reachable from
where the client stands."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from tests.clients.conftest import new_client
from tests.support.broker_process import BrokerProcess
from tests.support.credentials import CertificateAuthority
from tests.support.raw_client import RawClient, Type
from tests.support.rest import Answer, call
from tests.support.secured import tls_settings

TOPIC = "persistent://public/default/t"
REST_LOOKUP = "/lookup/v2/topic/persistent/public/default/t"


def free_port() -> int:
    """A port that nothing listens on at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One with three listeners: `outside` leads here by another name, `elsewhere` to no broker at all."""
    process = BrokerProcess(tmp_path_factory.mktemp("listeners"))
    process.ready = {"broker_port": free_port()}  # An advertised listener has to name its port.
    port = process.ready["broker_port"]
    process.settings = {
        "advertisedListeners": f"inside:pulsar://127.0.0.1:{port},outside:pulsar://localhost:{port},"
        "outside:pulsar+ssl://localhost:1234,outside:http://localhost:5678,elsewhere:pulsar://far.example:6650",
        "internalListenerName": "inside",
    }
    with process.running():
        yield process


def look_up(broker: BrokerProcess, **fields: str) -> dict[str, object]:
    client = RawClient(broker.url)
    client.connect()
    reply = client.request(Type.LOOKUP, topic=TOPIC, **fields)
    client.close()
    return reply


def look_up_by_rest(broker: BrokerProcess, query: str = "", **headers: str) -> Answer:
    url = f"http://127.0.0.1:{broker.ready['http_port']}{REST_LOOKUP}{query}"
    return call(url, headers={name.replace("_", "-"): value for name, value in headers.items()})


def test_the_binary_lookup_answers_with_the_listener_that_is_named(broker: BrokerProcess) -> None:
    port = broker.ready["broker_port"]
    outside = look_up(broker, advertised_listener_name="outside")
    assert outside["response"] == "Connect"
    assert outside["brokerServiceUrl"] == f"pulsar://localhost:{port}"
    assert outside["brokerServiceUrlTls"] == "pulsar+ssl://localhost:1234"
    elsewhere = look_up(broker, advertised_listener_name="elsewhere")
    assert elsewhere["brokerServiceUrl"] == "pulsar://far.example:6650"
    assert "brokerServiceUrlTls" not in elsewhere


def test_without_a_name_the_internal_listener_answers(broker: BrokerProcess) -> None:
    url = f"pulsar://127.0.0.1:{broker.ready['broker_port']}"
    assert look_up(broker)["brokerServiceUrl"] == url
    assert look_up(broker, advertised_listener_name="")["brokerServiceUrl"] == url
    assert look_up_by_rest(broker).json["brokerUrl"] == url
    assert broker.url == url


def test_the_lookup_by_rest_takes_the_name_from_query_or_header(broker: BrokerProcess) -> None:
    by_query = look_up_by_rest(broker, "?listenerName=outside")
    by_header = look_up_by_rest(broker, X_Pulsar_ListenerName="outside")
    assert by_query == by_header
    assert by_query.status == 200
    found = by_query.json
    assert found["brokerUrl"] == found["nativeUrl"] == f"pulsar://localhost:{broker.ready['broker_port']}"
    assert found["brokerUrlTls"] == "pulsar+ssl://localhost:1234"
    assert found["httpUrl"] == "http://localhost:5678"


def test_an_unknown_listener_is_told_with_the_names_there_are(broker: BrokerProcess) -> None:
    refused = look_up(broker, advertised_listener_name="nowhere")
    assert (refused["response"], refused["error"]) == ("Failed", "ServiceNotReady")
    by_rest = look_up_by_rest(broker, "?listenerName=nowhere")
    assert by_rest.status == 503
    for text in (refused["message"], by_rest.json["reason"]):
        assert str(text).startswith("the broker do not have nowhere listener")
        assert "inside, outside, elsewhere" in str(text)


def test_a_tls_client_without_listener_name_gets_an_address_that_another_listener_has(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    broker = BrokerProcess(tmp_path, tls_settings(authority))
    broker.ready = {"broker_port": free_port(), "broker_port_tls": free_port()}
    plain, tls = broker.ready["broker_port"], broker.ready["broker_port_tls"]
    broker.settings["advertisedListeners"] = f"plain:pulsar://127.0.0.1:{plain},secure:pulsar+ssl://localhost:{tls}"
    with broker.running():
        assert look_up(broker)["brokerServiceUrl"] == f"pulsar://127.0.0.1:{plain}"
        url = f"pulsar+ssl://localhost:{tls}"
        client = new_client(url, tls_trust_certs_file_path=str(authority.certificate_path))
        client.create_producer(TOPIC).send(b"by way of the other listener")
        client.close()


# The official client sends the name of its listener by the binary protocol only, which is why these two have no twin by HTTP.


def test_the_official_client_reaches_the_broker_by_the_listener_it_names(broker: BrokerProcess) -> None:
    client = new_client(broker.url, listener_name="outside")
    consumer = client.subscribe(TOPIC, "s")
    client.create_producer(TOPIC).send(b"by the other name")
    assert consumer.receive(30_000).data() == b"by the other name"
    client.close()


def test_the_official_client_cannot_use_a_listener_that_is_not_there(broker: BrokerProcess) -> None:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    # It gives up at once when the text is as for a listener of this very name, and else tries until its timeout.
    client = pulsar.Client(broker.url, operation_timeout_seconds=60, listener_name="test", logger=logger)
    with pytest.raises(pulsar.ConnectError):
        client.create_producer(TOPIC)
    client.close()


def test_the_advertised_address_stands_in_every_url(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, {"bindAddress": "0.0.0.0", "advertisedAddress": "localhost"})
    with broker.running():
        assert_advertises_localhost(broker)


def assert_advertises_localhost(broker: BrokerProcess) -> None:
    port, http_port = broker.ready["broker_port"], broker.ready["http_port"]
    assert (broker.url, broker.http_url) == (f"pulsar://localhost:{port}", f"http://localhost:{http_port}")
    assert look_up(broker)["brokerServiceUrl"] == broker.url
    found = look_up_by_rest(broker).json
    assert (found["brokerUrl"], found["httpUrl"]) == (broker.url, broker.http_url)
    # Without a TLS port there is no brokerUrlTls; the C++ client then insists on this older name.
    assert ("brokerUrlTls" in found, found["brokerUrlSsl"]) == (False, "")
    assert call(broker.http_url + "/admin/v2/brokers").json == [f"localhost:{http_port}"]
    client = new_client(broker.http_url)
    client.create_producer(TOPIC).send(b"reached")
    client.close()
