"""Many official clients do the same to one subscription at once: who can be served by waiting is served, and nothing is lost."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pulsar
import pytest
from tests.clients.conftest import admin, new_client, path_of, receive_all, texts, until
from tests.support.broker_process import BrokerProcess
from tests.support.raw_client import connected
from tests.support.rest import call

CLIENTS = 8
TYPES = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Shared": pulsar.ConsumerType.Shared,
    "Failover": pulsar.ConsumerType.Failover,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One whose ledgers are short, and are dropped as soon as nobody needs them."""
    settings = {"managedLedgerMaxEntriesPerLedger": "10", "managedLedgerMinLedgerRolloverTimeMinutes": "0"}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings).running_well() as process:
        yield process


@pytest.fixture(scope="module")
def clients(broker: BrokerProcess) -> Iterator[list[pulsar.Client]]:
    """Each with a connection of its own."""
    with contextlib.ExitStack() as stack:
        opened = [new_client(broker.url) for _ in range(CLIENTS)]
        for client in opened:
            stack.callback(client.close)
        yield opened


def at_once(actions: list[Callable[[], object]]) -> Counter[str]:
    """How often each action, each in a thread of its own, ended how: `ok`, or the name of what it raised."""
    barrier = threading.Barrier(len(actions))

    def run(action: Callable[[], object]) -> str:
        barrier.wait()
        try:
            action()
        except pulsar.PulsarException as error:
            return type(error).__name__
        return "ok"

    with ThreadPoolExecutor(len(actions)) as pool:
        return Counter(pool.map(run, actions))


@pytest.mark.parametrize("kind", TYPES)
def test_all_who_subscribe_first_get_in_or_the_right_error(clients: list[pulsar.Client], topic: str, kind: str) -> None:
    count = 5 * CLIENTS

    def subscribe(index: int) -> object:
        return clients[index % CLIENTS].subscribe(topic, "s", consumer_type=TYPES[kind])

    outcomes = at_once([lambda index=index: subscribe(index) for index in range(count)])
    assert outcomes == ({"ok": 1, "ConsumerBusy": count - 1} if kind == "Exclusive" else {"ok": count})


def test_of_all_types_at_once_those_of_one_get_in_and_the_others_are_told_so(
    clients: list[pulsar.Client], topic: str
) -> None:
    def subscribe(index: int) -> object:
        kind = list(TYPES.values())[index % len(TYPES)]
        return clients[index % CLIENTS].subscribe(topic, "s", consumer_type=kind)

    outcomes = at_once([lambda index=index: subscribe(index) for index in range(5 * CLIENTS)])
    assert set(outcomes) == {"ok", "ConsumerBusy"}


def test_consumers_of_the_same_topics_come_and_go(clients: list[pulsar.Client], topic: str) -> None:
    topics = [f"{topic}-{index}" for index in range(5)]

    def come_and_go(client: pulsar.Client) -> None:
        for _ in range(3):
            consumer = client.subscribe(topics, "s", consumer_type=pulsar.ConsumerType.Shared)
            consumer.close()

    assert at_once([lambda client=client: come_and_go(client) for client in clients]) == {"ok": CLIENTS}


def test_consumers_come_while_others_seek_and_the_cursor_is_reset(
    broker: BrokerProcess, clients: list[pulsar.Client], topic: str
) -> None:
    producer = clients[0].create_producer(topic)
    seeking = clients[0].subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    for index in range(20):
        producer.send(b"m%d" % index)

    def come_and_go(client: pulsar.Client) -> None:
        for _ in range(3):
            client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared).close()

    def reset() -> None:
        for _ in range(5):
            admin(broker, "POST", f"{path_of(topic)}/subscription/s/resetcursor/1")

    outcomes = at_once(
        [lambda: seeking.seek(pulsar.MessageId.earliest)]
        + [lambda client=client: come_and_go(client) for client in clients[1:]]
    )
    assert outcomes == {"ok": CLIENTS}
    assert at_once([reset, *(lambda client=client: come_and_go(client) for client in clients[1:])]) == {"ok": CLIENTS}
    assert {message.data() for message in receive_all(seeking, 20)} == {b"m%d" % index for index in range(20)}
    seeking.close()


def test_a_durable_subscription_and_readers_of_its_name_lose_nothing(
    broker: BrokerProcess, clients: list[pulsar.Client], topic: str
) -> None:
    producer = clients[0].create_producer(topic)
    made: list[pulsar.Consumer] = []
    with contextlib.ExitStack() as stack:
        # The clients' readers have subscriptions of their own making; these name theirs.
        readers = [stack.enter_context(connected(broker)) for _ in range(4)]
        subscribe = clients[1].subscribe
        outcomes = at_once(
            [
                lambda: made.append(subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)),
                *(lambda reader=reader: reader.subscribe(topic, subscription="s", durable=False) for reader in readers),
            ]
        )
    # Whoever was first has the name; what is durable stays when the others are gone.
    assert outcomes == {"ok": 5} if made else outcomes == {"ok": 4, "NotAllowedError": 1}
    if not made:
        until(lambda: "s" not in admin(broker, "GET", f"{path_of(topic)}/subscriptions").json)
        made.append(subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared))
    made[0].close()
    for index in range(60):
        producer.send(b"m%d" % index)
    admin(broker, "PUT", f"{path_of(topic)}/unload")
    consumer = subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    assert sorted(texts(receive_all(consumer, 60))) == sorted(f"m{index}" for index in range(60))
    consumer.close()


@pytest.mark.parametrize("how", ["subscription", "topic"])
def test_consumers_come_while_what_they_subscribe_to_is_deleted_or_unloaded(
    broker: BrokerProcess, clients: list[pulsar.Client], topic: str, how: str
) -> None:
    clients[0].create_producer(topic).close()
    done = threading.Event()

    def come_and_go(client: pulsar.Client) -> None:
        while not done.is_set():
            client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared).close()

    statuses: Counter[int] = Counter()

    def end() -> None:
        base = f"{broker.http_url}/admin/v2{path_of(topic)}"
        for _ in range(10):
            if how == "topic":
                statuses[call(f"{base}/unload", "PUT").status] += 1
            else:
                statuses[call(f"{base}/subscription/s?force=true", "DELETE").status] += 1
        done.set()

    assert at_once([end, *(lambda client=client: come_and_go(client) for client in clients)]) == {"ok": CLIENTS + 1}
    assert set(statuses) <= {204, 404}
    last = clients[0].subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    clients[0].create_producer(topic).send(b"still here")
    assert last.receive(5000).data() == b"still here"
    stats = admin(broker, "GET", f"{path_of(topic)}/stats").json
    assert len(stats["subscriptions"]["s"]["consumers"]) == 1
    last.close()


def test_of_those_who_make_a_subscription_by_rest_one_does(
    broker: BrokerProcess, clients: list[pulsar.Client], topic: str
) -> None:
    clients[0].create_producer(topic).close()
    statuses: Counter[int] = Counter()

    def make() -> None:
        statuses[call(f"{broker.http_url}/admin/v2{path_of(topic)}/subscription/s", "PUT").status] += 1

    assert at_once([make] * 10) == {"ok": 10}
    assert statuses == {204: 1, 409: 9}
