"""Acknowledges every other entry of subscriptions, and checks which entries are delivered again after a restart."""

from benchmarks import cases, load
from benchmarks.brokers import Broker
from pybroker.wire import pulsar_api_pb2 as pb

PAYLOAD_BYTES = 16
# Entries per ACK, as a client groups them.
IDS_PER_ACK = 1000
LOAD_TIMEOUT_S = 300.0


def subscription_name(number: int) -> str:
    return f"holes-{number}"


def publish(broker: Broker, topic: str, entries: int) -> int:
    publisher = cases.open_publisher(broker, topic, PAYLOAD_BYTES, cases.WINDOW_MESSAGES)
    publisher.limit_to(entries)
    load.run([publisher], publisher.finished, LOAD_TIMEOUT_S)
    publisher.link.close()
    last = publisher.last_receipt.message_id
    if last.entryId != entries - 1:
        raise load.LoadError(
            f"{entries} entries in one ledger were expected, but the last one is {last.ledgerId}:{last.entryId}"
        )
    return int(last.ledgerId)


def open_subscription(broker: Broker, topic: str, number: int, sub_type: "pb.CommandSubscribe.SubType") -> load.Link:
    link = load.Link(broker.service_url)
    link.subscribe(topic, subscription_name(number), sub_type, consumer_id=1)
    return link


def make(broker: Broker, topic: str, subscriptions: int, holes: int) -> None:
    """Publish, subscribe, and acknowledge `holes` entries per subscription: the entries 1, 3, 5, ... of the topic's
    only ledger. Everything is durable on return.
    """
    links = [open_subscription(broker, topic, number, pb.CommandSubscribe.Shared) for number in range(subscriptions)]
    ledger_id = publish(broker, topic, 2 * holes)
    for link in links:
        for first in range(1, 2 * holes, 2 * IDS_PER_ACK):
            ids = range(first, min(first + 2 * IDS_PER_ACK, 2 * holes), 2)
            link.acknowledge(1, [pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id) for entry_id in ids])
        link.close()


def check(broker: Broker, topic: str, number: int, holes: int) -> None:
    """Receive the backlog of the subscription. Raises LoadError unless it is exactly the unacknowledged entries."""
    witness = load.Witness(open_subscription(broker, topic, number, pb.CommandSubscribe.Exclusive))
    load.run([witness], lambda: witness.received >= holes, LOAD_TIMEOUT_S)
    witness.note_rest()
    witness.link.close()
    found = [entry_id for _, entry_id in witness.positions]
    if found != list(range(0, 2 * holes, 2)):
        wrong = next(entry_id for due, entry_id in zip(range(0, 2 * holes, 2), found, strict=False) if entry_id != due)
        raise load.LoadError(f"{subscription_name(number)}: entry {wrong} was delivered out of order")


def first_entry(broker: Broker, topic: str, number: int) -> None:
    witness = load.Witness(open_subscription(broker, topic, number, pb.CommandSubscribe.Exclusive))
    load.run([witness], lambda: witness.received > 0, LOAD_TIMEOUT_S)
    witness.link.close()
