"""Delayed delivery: its REST calls, and what each subscription type gets when."""

from datetime import timedelta
from typing import Any

import pulsar
from tests.differential.harness import Run, scenario
from tests.differential.scenarios_retention import Topic

LATER = timedelta(milliseconds=2500)
HOUR_MS = 3_600_000
PUBLISHED_MS = 1_700_000_000_000


@scenario
def rest_delayed_delivery(run: Run) -> None:
    """The policy of a namespace and of a topic, and every way to get it wrong."""
    topic = Topic(run)
    topic.publish(0)
    for level, path in (
        ("namespace", f"{topic.namespace}/delayedDelivery"),
        ("topic", f"{topic.path}/delayedDelivery"),
    ):
        run.rest(f"{level} unset", "GET", path)
        run.rest_status(f"{level} no JSON", "POST", path, b"{bad")
        run.rest(f"{level} off", "POST", path, {"active": False, "tickTime": 1000})
        topic.until(f"{level} off is set", path, lambda data: b"false" in data)
        run.rest(f"{level} off shown", "GET", path)
        run.rest(f"{level} on", "POST", path, {"active": True, "tickTime": 77, "maxDeliveryDelayInMillis": 88})
        topic.until(f"{level} on is set", path, lambda data: b"88" in data)
        run.rest(f"{level} shown", "GET", path)
        run.rest("applied", "GET", f"{topic.path}/delayedDelivery?applied=true")
    run.rest("topic unset again", "DELETE", f"{topic.path}/delayedDelivery")
    topic.until("topic is unset", f"{topic.path}/delayedDelivery", lambda data: not data)
    run.rest("applied to the topic", "GET", f"{topic.path}/delayedDelivery?applied=true")
    run.rest("namespace unset again", "DELETE", f"{topic.namespace}/delayedDelivery")
    run.rest("namespace after", "GET", f"{topic.namespace}/delayedDelivery")
    run.rest("applied by default", "GET", f"{topic.path}/delayedDelivery?applied=true")
    body: Any
    for method, body in (("GET", ...), ("POST", {"active": True, "tickTime": 1}), ("DELETE", ...)):
        run.rest(f"{method} of a missing namespace", method, f"{topic.namespace}-no/delayedDelivery", body)
        run.rest(f"{method} of a missing topic", method, f"{topic.missing}/delayedDelivery", body)


@scenario
def rest_delayed_delivery_values(run: Run) -> None:
    """Values that nobody can mean, and those that are left out."""
    topic = Topic(run)
    topic.publish(0)
    bodies: tuple[tuple[str, Any], ...] = (
        ("no tick", {"active": True}),
        ("tick 0", {"active": True, "tickTime": 0}),
        ("negative tick", {"active": True, "tickTime": -1}),
        ("negative maximum", {"active": True, "tickTime": 1, "maxDeliveryDelayInMillis": -1}),
        ("empty", {}),
        ("null", None),
    )
    for level, path in (
        ("namespace", f"{topic.namespace}/delayedDelivery"),
        ("topic", f"{topic.path}/delayedDelivery"),
    ):
        for name, body in bodies:
            run.rest(f"{level} {name}", "POST", path, body)


@scenario
def delayed_messages_by_type(run: Run) -> None:
    """Held back on Shared and Key_Shared, delivered at once on the others."""
    for kind in ("Exclusive", "Failover", "Shared", "KeyShared"):
        topic = run.topic(kind)
        consumer = run.client().subscribe(topic, "s", consumer_type=getattr(pulsar.ConsumerType, kind))
        producer = run.client().create_producer(topic, producer_name="p")
        producer.send(b"later", partition_key="k", deliver_after=LATER)
        producer.send(b"now", partition_key="k")
        producer.send(b"past", partition_key="k", deliver_at=1)
        messages = run.receive(consumer, 3)
        run.step(kind, [(each.data().decode(), each.redelivery_count()) for each in messages])


@scenario
def delayed_messages_over_the_limit(run: Run) -> None:
    """A delay that is too long is refused; the producer goes on."""
    topic = Topic(run)
    topic.publish(0)
    path = f"{topic.path}/delayedDelivery"
    run.rest("set", "POST", path, {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": HOUR_MS})
    topic.until("is set", path, lambda data: str(HOUR_MS).encode() in data)
    with run.raw() as client:
        client.open_producer(topic.name)
        for sequence_id, delay_ms in enumerate((0, HOUR_MS, HOUR_MS + 1, 10 * HOUR_MS)):
            times = {"publish_time": PUBLISHED_MS, "deliver_at_time": PUBLISHED_MS + delay_ms}
            client.send_message(1, sequence_id, metadata=times)
            reply = client.reply()
            run.step(f"delay {delay_ms}", {name: reply.get(name) for name in ("type", "error", "message")})


@scenario
def delayed_messages_and_policies(run: Run) -> None:
    """With delayed delivery off, messages that are published go out at once."""
    topic = Topic(run)
    path = f"{topic.path}/delayedDelivery"
    consumer = topic.client.subscribe(topic.name, "s", consumer_type=pulsar.ConsumerType.Shared)
    run.rest("off", "POST", path, {"active": False, "tickTime": 1000})
    topic.until("is off", path, lambda data: b"false" in data)
    producer = topic.client.create_producer(topic.name, producer_name="p")
    producer.send(b"delayed", deliver_after=timedelta(hours=1))
    run.step("received", [each.data().decode() for each in run.receive(consumer, 1)])
