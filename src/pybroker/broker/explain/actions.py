"""The calls that findings suggest: each of them is served, and needs the caller's rights as ever."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING
from urllib.parse import quote

from pybroker.model.findings import Action

if TYPE_CHECKING:
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.model.names import TopicName
    from pybroker.model.position import Position
    from pybroker.model.transactions import TxnId


def topic_path(topic: TopicName) -> str:
    """Where the calls about a topic begin."""
    parts = (topic.domain, topic.tenant, topic.namespace.local_name, topic.local_name)
    return "/admin/v2/" + "/".join(quote(part, safe="") for part in parts)


def subscription_path(subscription: SubscriptionBase) -> str:
    """Where the calls about a subscription begin."""
    return f"{topic_path(subscription.topic.name)}/subscription/{quote(subscription.name, safe='')}"


def unload(topic: TopicName) -> Action:
    return Action(
        "Unload the topic: its clients connect again, and what is unacknowledged is delivered anew",
        "PUT",
        topic_path(topic) + "/unload",
    )


def skip_all(subscription: SubscriptionBase) -> Action:
    return _of_subscription(subscription, "Give up all messages that wait, if nobody wants them", "POST", "/skip_all")


def skip_one(subscription: SubscriptionBase) -> Action:
    return _of_subscription(subscription, "Give up the first message that waits", "POST", "/skip/1")


def delete_subscription(subscription: SubscriptionBase) -> Action:
    return _of_subscription(subscription, "Delete the subscription, if nobody will come back to it", "DELETE", "")


def explain_consumer(consumer: Consumer) -> Action:
    text, rest = f"Look at consumer {consumer.name}", f"/explain?consumer={quote(consumer.name, safe='')}"
    return _of_subscription(consumer.subscription, text, "GET", rest, "explain", "--consumer", consumer.name)


def show_unacked(consumer: Consumer) -> Action:
    text, rest = f"List what consumer {consumer.name} holds", f"/unacked?consumer={quote(consumer.name, safe='')}"
    return _of_subscription(consumer.subscription, text, "GET", rest, "unacked", "--consumer", consumer.name)


def disconnect(consumer: Consumer) -> Action:
    """Its client subscribes again, and meanwhile everything it holds goes to others."""
    text = f"Disconnect consumer {consumer.name}: what it holds goes to others, and its client subscribes again"
    rest = f"/consumer/{quote(consumer.name, safe='')}/disconnect?consumerId={consumer.consumer_id}"
    which = ("--consumer", consumer.name, "--consumer-id", str(consumer.consumer_id))
    return _of_subscription(consumer.subscription, text, "POST", rest, "disconnect", *which)


def redeliver(subscription: SubscriptionBase, position: Position) -> Action:
    text, rest = f"Deliver message {position} again now", _message(position) + "/redeliver"
    return _of_subscription(subscription, text, "POST", rest, "redeliver", str(position))


def deliver_now(subscription: SubscriptionBase, position: Position) -> Action:
    text, rest = f"Deliver message {position} now", _message(position) + "/delay"
    return _of_subscription(subscription, text, "DELETE", rest, "delay", str(position), "--now")


def acknowledge(subscription: SubscriptionBase, position: Position) -> Action:
    text, rest = f"Give message {position} up, so that the others go on", _message(position) + "/acknowledge"
    return _of_subscription(subscription, text, "POST", rest, "ack", str(position))


def show_draining_hashes(subscription: SubscriptionBase) -> Action:
    return _of_subscription(subscription, "List all hashes that drain", "GET", "/drainingHashes", "draining")


def show_waiting(subscription: SubscriptionBase) -> Action:
    return _of_subscription(subscription, "List the keys that fill the look-ahead", "GET", "/waiting", "waiting")


def show_delayed(subscription: SubscriptionBase) -> Action:
    return _of_subscription(subscription, "List the messages that wait for their time", "GET", "/delayed", "delayed")


def disconnect_producer(topic: TopicName, name: str) -> Action:
    return Action(
        f"Disconnect producer {name}: its client connects again, behind those that wait",
        "POST",
        f"{topic_path(topic)}/producer/{quote(name, safe='')}/disconnect",
        command=shlex.join(("pybroker", "disconnect", str(topic), "--producer", name)),
    )


def set_policy(topic: TopicName, policy: str, body: object, text: str) -> Action:
    return Action(text, "POST", f"{topic_path(topic)}/{policy}", body)


def remove_policy(topic: TopicName, policy: str, text: str) -> Action:
    return Action(text, "DELETE", f"{topic_path(topic)}/{policy}")


def set_configuration(key: str, value: object, text: str) -> Action:
    """Of a key that can be changed at run time."""
    return Action(text, "POST", f"/admin/v2/brokers/configuration/{key}/{value}")


def show_transaction(txn: TxnId) -> Action:
    return Action(
        f"Look at transaction {txn}", "GET", f"/admin/v3/transactions/transactionMetadata/{txn.most}/{txn.least}"
    )


def abort_transaction(txn: TxnId) -> Action:
    return Action(
        f"Abort transaction {txn}: its messages are dropped, and its acknowledgements undone",
        "POST",
        f"/admin/v3/transactions/abortTransaction/{txn.most}/{txn.least}",
    )


def _of_subscription(
    subscription: SubscriptionBase, text: str, method: str, rest: str, command: str = "", *arguments: str
) -> Action:
    """A call about a subscription: `rest` is its path behind that, `arguments` what its command takes besides."""
    words = ("pybroker", command, str(subscription.topic.name), subscription.name, *arguments)
    return Action(text, method, subscription_path(subscription) + rest, command=shlex.join(words) if command else None)


def _message(position: Position) -> str:
    return f"/message/{position.ledger_id}/{position.entry_id}"
