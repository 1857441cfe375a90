"""A real broker process keeps what was changed while it ran, and stops when it is asked to."""

from __future__ import annotations

from pathlib import Path

import pulsar
from tests.support.broker_process import BrokerProcess
from tests.support.rest import call

ADMIN = "/admin/v2"
CONFIGURATION = f"{ADMIN}/brokers/configuration"


def runtime_value(broker: BrokerProcess, key: str) -> str:
    value: str = call(f"{broker.http_url}{CONFIGURATION}/runtime").json[key]
    return value


def test_a_changed_setting_wins_over_the_file_after_kill_nine_and_goes_when_it_is_taken_back(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, {"maxConcurrentLookupRequest": "77"})
    with broker.running():
        url = f"{broker.http_url}{CONFIGURATION}/maxConcurrentLookupRequest"
        assert call(f"{url}/88", "POST").status == 200
        broker.restart_after_kill()
        assert runtime_value(broker, "maxConcurrentLookupRequest") == "88"
        assert call(f"{broker.http_url}{CONFIGURATION}/values").json == {"maxConcurrentLookupRequest": "88"}
        assert call(url, "DELETE").status == 200
        assert runtime_value(broker, "maxConcurrentLookupRequest") == "77"
        broker.restart_after_kill()
        assert runtime_value(broker, "maxConcurrentLookupRequest") == "77"


def test_a_broker_stops_in_good_order_when_it_is_asked_to(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).start()
    assert call(f"{broker.http_url}{ADMIN}/brokers/shutdown", "POST").status == 204
    assert broker.process is not None
    assert broker.process.wait(30) == 0


def test_clients_come_back_by_themselves_when_their_bundle_is_unloaded(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path).running() as broker:
        client = pulsar.Client(broker.url)
        try:
            producer = client.create_producer("some-topic")
            consumer = client.subscribe("some-topic", "s", consumer_type=pulsar.ConsumerType.Shared)
            for index in range(3):
                producer.send(str(index).encode())
            assert [consumer.receive(30_000).data() for _ in range(3)] == [b"0", b"1", b"2"]
            lookup = f"{broker.http_url}/lookup/v2/topic/persistent/public/default/some-topic/bundle"
            bundle = call(lookup).text
            unload = f"{broker.http_url}{ADMIN}/namespaces/public/default/{bundle}/unload"
            assert call(unload, "PUT").status == 204
            producer.send(b"3")
            received = sorted(consumer.receive(30_000).data() for _ in range(4))
            assert received == [b"0", b"1", b"2", b"3"]  # What nobody acknowledged comes again.
        finally:
            client.close()
