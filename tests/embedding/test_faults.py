"""What a test makes go wrong: whom it meets, in which order, how often, and what is left of it afterwards."""

import threading

import pulsar
import pytest
from tests.embedding.conftest import Connect

from pybroker.embedding import BrokerThread, UnusedFault, embed_in_thread
from pybroker.errors import AuthorizationError


def sends(producer: pulsar.Producer, *contents: bytes) -> list[threading.Event]:
    """Publish without waiting; what is set when the receipt has come."""
    told = []
    for content in contents:
        event = threading.Event()
        told.append(event)
        producer.send_async(content, lambda result, message_id, event=event: event.set())
    return told


def test_only_the_topic_that_is_meant_is_met_with_all_its_partitions(
    broker: BrokerThread, client: pulsar.Client
) -> None:
    broker.faults.refuse("PRODUCER", AuthorizationError, count=100, topic="meant")
    for topic in ("meant", "meant-partition-1"):
        with pytest.raises(pulsar.AuthorizationError):
            client.create_producer(topic)
    client.create_producer("other").close()


def test_only_who_has_the_name_is_dropped(broker: BrokerThread, connect: Connect) -> None:
    one, two = connect(broker.service_url), connect(broker.service_url)
    one.create_producer("t", producer_name="first")
    two.create_producer("t", producer_name="second")
    before = len(broker.embedded._lines())
    assert broker.faults.drop_connections(name="first") == 1
    assert broker.faults.drop_connections(name="nobody") == 0
    assert before == 2


def test_a_refusal_happens_as_often_as_was_asked_for_and_no_more(broker: BrokerThread, client: pulsar.Client) -> None:
    broker.faults.refuse("SUBSCRIBE", "ConsumerBusy", count=2)
    for _ in range(2):
        with pytest.raises(pulsar.ConsumerBusy):
            client.subscribe("t", "s")
    client.subscribe("t", "s")


@pytest.mark.parametrize(
    ("command", "error", "raised"),
    [
        ("LOOKUP", "AuthorizationError", pulsar.AuthorizationError),
        ("PARTITIONED_METADATA", "AuthorizationError", pulsar.AuthorizationError),
    ],
)
def test_requests_with_answers_of_their_own_are_refused_in_these(
    broker: BrokerThread, client: pulsar.Client, command: str, error: str, raised: type[Exception]
) -> None:
    broker.faults.refuse(command, error, count=100)
    with pytest.raises(raised):
        client.create_producer("t")


def test_who_is_not_let_in_tries_again(broker: BrokerThread, client: pulsar.Client) -> None:
    broker.faults.refuse("CONNECT", "ServiceNotReady", count=2)
    client.create_producer("t").send(b"x")
    assert not [refusal for refusal in broker.faults._refusals if refusal.left]


def test_names_that_there_are_not_are_told_with_those_that_there_are(broker: BrokerThread) -> None:
    with pytest.raises(ValueError, match="'PUBLISH' is not a command that can be refused: use one of CONNECT"):
        broker.faults.refuse("PUBLISH")
    with pytest.raises(ValueError, match="there is no ServerError 'Oops'"):
        broker.faults.refuse("SEND", "Oops")
    with pytest.raises(ValueError, match="is not a ServerError"):
        broker.faults.refuse("SEND", ValueError)  # type: ignore[arg-type]


def test_a_refused_message_is_sent_again(broker: BrokerThread, client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s")
    producer = client.create_producer("t", batching_enabled=False)
    broker.faults.refuse("SEND", "PersistenceError", count=1)
    for event in sends(producer, b"0", b"1", b"2"):
        assert event.wait(20)
    contents: set[bytes] = set()
    while len(contents) < 3:  # What came behind it may have come before it is there again.
        contents.add(consumer.receive(30_000).data())


def test_a_refused_acknowledgement_leaves_the_message_where_it_was(broker: BrokerThread, client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s")
    client.create_producer("t").send(b"x")
    broker.faults.refuse("ACK", count=1)
    consumer.acknowledge(consumer.receive(30_000))
    consumer.close()
    assert client.subscribe("t", "s").receive(30_000).data() == b"x"


def test_late_receipts_come_in_order_by_the_brokers_clock_or_when_the_fault_ends(
    broker: BrokerThread, client: pulsar.Client
) -> None:
    producer = client.create_producer("t", batching_enabled=False)
    fault = broker.faults.delay_receipts(3600)
    first = sends(producer, b"0", b"1")
    assert not first[0].wait(0.1)
    broker.faults.refuse("SEEK").end()
    assert not first[0].wait(0.1), "the end of another fault lets nothing go"
    broker.clock.advance(hours=1)
    assert all(event.wait(20) for event in first)
    second = sends(producer, b"2", b"3")
    assert not second[0].wait(0.1)
    fault.undo()
    fault.undo()
    assert all(event.wait(20) for event in second)


def test_a_connection_that_stalled_goes_on_where_it_was(broker: BrokerThread, client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s")
    producer = client.create_producer("t", batching_enabled=False)
    with broker.faults.stall_connections(topic="t"):
        told = sends(producer, b"0", b"1", b"2")
        assert not told[0].wait(0.1)
    assert all(event.wait(20) for event in told)
    assert [consumer.receive(30_000).data() for _ in range(3)] == [b"0", b"1", b"2"]


def test_a_slow_consumer_that_leaves_takes_what_it_had_not_got_to_the_next(
    broker: BrokerThread, connect: Connect
) -> None:
    slow, fast = connect(broker.service_url), connect(broker.service_url)
    shared = pulsar.ConsumerType.Shared
    broker.faults.slow_consumer(3600, name="turtle")
    turtle = slow.subscribe("t", "s", consumer_type=shared, consumer_name="turtle")
    producer = slow.create_producer("t", batching_enabled=False)
    for index in range(3):
        producer.send(b"%d" % index)
    with pytest.raises(pulsar.Timeout):
        turtle.receive(100)
    hare = fast.subscribe("t", "s", consumer_type=shared, consumer_name="hare")
    turtle.close()
    assert sorted(hare.receive(30_000).data() for _ in range(3)) == [b"0", b"1", b"2"]


def test_faults_are_set_and_undone_by_several_threads_at_once(broker: BrokerThread, client: pulsar.Client) -> None:
    def trouble() -> None:
        for _ in range(50):
            made = (
                broker.faults.refuse("SUBSCRIBE", count=1, topic="another"),
                broker.faults.lose_receipts(topic="another"),
            )
            assert all(fault.end() is not None for fault in made), "they met nothing"

    threads = [threading.Thread(target=trouble) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not broker.faults.touches_commands
    assert not broker.faults.touches_receipts
    client.create_producer("t").send(b"x")


def test_a_full_disk_is_full_for_local_stores_too(tmp_path: object, connect: Connect) -> None:
    with embed_in_thread(str(tmp_path)) as broker:
        client = connect(broker.service_url)
        client.create_producer("t").send(b"x")
        impatient = client.create_producer("t", send_timeout_millis=500)
        with broker.faults.full_disk():
            broker.restart()
            with pytest.raises(pulsar.PulsarException):
                impatient.send(b"x")
        broker.restart()
        connect(broker.service_url).create_producer("t").send(b"x")


def test_a_fault_that_never_happens_warns_when_it_ends(broker: BrokerThread, client: pulsar.Client) -> None:
    client.create_producer("orders").send(b"x")
    with pytest.warns(UnusedFault, match="lose_receipts, topic persistent://public/default/ordres never happened"):
        broker.faults.lose_receipts(topic="ordres").undo()
    with pytest.warns(
        UnusedFault, match="no connection matched it. Topics that had a connection: persistent://public/default/orders"
    ):
        broker.faults.stall_connections(topic="ordres").undo()
    broker.faults.slow_consumer(60, subscription="nosuch")
    with pytest.warns(UnusedFault, match="slow_consumer never happened") as warned:
        broker.reset()
    assert [warning.filename for warning in warned] == [__file__]


def test_faults_end_and_the_broker_begins_anew_also_where_warnings_are_errors(broker: BrokerThread) -> None:
    first, second = broker.faults.refuse("SEEK"), broker.faults.refuse("ACK")
    with pytest.raises(UnusedFault):  # pytest is configured to make errors of warnings
        broker.reset()
    assert broker.is_running
    assert not broker.faults._refusals
    assert first.end() is second.end() is None
