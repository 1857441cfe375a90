"""One broker for each test module, and official clients on it."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.rest import Answer, call

_serial = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A running broker that the module's tests share; each uses topics of its own."""
    process = BrokerProcess(tmp_path_factory.mktemp("broker")).start()
    yield process
    assert process.stop() == 0


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A running broker that this test may kill."""
    process = BrokerProcess(tmp_path).start()
    yield process
    process.stop()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    """A client of the module's broker."""
    connected = new_client(broker.url)
    yield connected
    connected.close()


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses."""
    return f"persistent://public/default/topic-{next(_serial)}"


def new_client(url: str, **options: Any) -> pulsar.Client:
    """A client that logs warnings and errors only."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn)
    return pulsar.Client(url, operation_timeout_seconds=20, logger=logger, **options)


@contextlib.contextmanager
def running_with_client(directory: Path, **settings: str) -> Iterator[tuple[BrokerProcess, pulsar.Client]]:
    """A broker with these settings and a client of it."""
    with BrokerProcess(directory, settings).running() as process:
        client = new_client(process.url)
        yield process, client
        client.close()


def path_of(topic: str) -> str:
    """Where REST has a topic, below `/admin/v2`."""
    return "/" + topic.replace("://", "/")


def admin(broker: BrokerProcess, method: str, path: str, body: object = None) -> Answer:
    """A call below `/admin/v2` that must succeed."""
    answer = call(f"{broker.http_url}/admin/v2{path}", method, body=body)
    assert answer.status < 300, answer
    return answer


def send_batch(client: pulsar.Client, topic: str, count: int) -> None:
    """m0, m1, ... in one entry."""
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for index in range(count):
        producer.send_async(b"m%d" % index, lambda result, message_id: None)
    producer.flush()
    producer.close()


def close_after_kill(client: pulsar.Client) -> None:
    """Close a client whose broker was killed: it may find that out just then, and says so."""
    with contextlib.suppress(pulsar.PulsarException):
        client.close()


def receive_all(consumer: pulsar.Consumer, count: int, timeout_ms: int = 30_000) -> list[pulsar.Message]:
    """The next `count` messages, not acknowledged."""
    return [consumer.receive(timeout_ms) for _ in range(count)]


def texts(messages: list[pulsar.Message]) -> list[str]:
    return [message.data().decode() for message in messages]


def assert_nothing_arrives(consumer: pulsar.Consumer, within_ms: int = 300) -> None:
    """Fails when a message comes after all."""
    with pytest.raises(pulsar.Timeout):
        consumer.receive(within_ms)


def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    """Poll for what the broker does by itself; fails when it does not."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.02)


Acknowledge = Callable[[pulsar.Message], None]
