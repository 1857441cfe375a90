"""The calls that findings suggest: each of them is served, and needs the caller's rights as ever."""

from __future__ import annotations

from shlex import quote as shell
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
    return Action(
        "Give up all messages that wait, if nobody wants them", "POST", subscription_path(subscription) + "/skip_all"
    )


def skip_one(subscription: SubscriptionBase) -> Action:
    return Action("Give up the first message that waits", "POST", subscription_path(subscription) + "/skip/1")


def delete_subscription(subscription: SubscriptionBase) -> Action:
    return Action("Delete the subscription, if nobody will come back to it", "DELETE", subscription_path(subscription))


def explain_consumer(consumer: Consumer) -> Action:
    subscription = consumer.subscription
    return Action(
        f"Look at consumer {consumer.name}",
        "GET",
        f"{subscription_path(subscription)}/explain?consumer={quote(consumer.name, safe='')}",
        command=f"pybroker explain {_words(subscription)} --consumer {shell(consumer.name)}",
    )


def show_unacked(consumer: Consumer) -> Action:
    subscription = consumer.subscription
    return Action(
        f"List what consumer {consumer.name} holds",
        "GET",
        f"{subscription_path(subscription)}/unacked?consumer={quote(consumer.name, safe='')}",
        command=f"pybroker unacked {_words(subscription)} --consumer {shell(consumer.name)}",
    )


def disconnect(consumer: Consumer) -> Action:
    """Its client subscribes again, and meanwhile everything it holds goes to others."""
    subscription = consumer.subscription
    return Action(
        f"Disconnect consumer {consumer.name}: what it holds goes to others, and its client subscribes again",
        "POST",
        f"{subscription_path(subscription)}/consumer/{quote(consumer.name, safe='')}/disconnect"
        f"?consumerId={consumer.consumer_id}",
        command=f"pybroker disconnect {_words(subscription)} --consumer {shell(consumer.name)}"
        f" --consumer-id {consumer.consumer_id}",
    )


def redeliver(subscription: SubscriptionBase, position: Position) -> Action:
    return Action(
        f"Deliver message {position} again now",
        "POST",
        _message(subscription, position) + "/redeliver",
        command=f"pybroker redeliver {_words(subscription)} {position}",
    )


def deliver_now(subscription: SubscriptionBase, position: Position) -> Action:
    return Action(
        f"Deliver message {position} now",
        "DELETE",
        _message(subscription, position) + "/delay",
        command=f"pybroker delay {_words(subscription)} {position} --now",
    )


def acknowledge(subscription: SubscriptionBase, position: Position) -> Action:
    return Action(
        f"Give message {position} up, so that the others go on",
        "POST",
        _message(subscription, position) + "/acknowledge",
        command=f"pybroker ack {_words(subscription)} {position}",
    )


def _message(subscription: SubscriptionBase, position: Position) -> str:
    return f"{subscription_path(subscription)}/message/{position.ledger_id}/{position.entry_id}"


def disconnect_producer(topic: TopicName, name: str) -> Action:
    return Action(
        f"Disconnect producer {name}: its client connects again, behind those that wait",
        "POST",
        f"{topic_path(topic)}/producer/{quote(name, safe='')}/disconnect",
        command=f"pybroker disconnect {shell(str(topic))} --producer {shell(name)}",
    )


def show_draining_hashes(subscription: SubscriptionBase) -> Action:
    return Action(
        "List all hashes that drain",
        "GET",
        subscription_path(subscription) + "/drainingHashes",
        command=f"pybroker draining {_words(subscription)}",
    )


def show_waiting(subscription: SubscriptionBase) -> Action:
    return Action(
        "List the keys that fill the look-ahead",
        "GET",
        subscription_path(subscription) + "/waiting",
        command=f"pybroker waiting {_words(subscription)}",
    )


def show_delayed(subscription: SubscriptionBase) -> Action:
    return Action(
        "List the messages that wait for their time",
        "GET",
        subscription_path(subscription) + "/delayed",
        command=f"pybroker delayed {_words(subscription)}",
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


def _words(subscription: SubscriptionBase) -> str:
    return f"{shell(str(subscription.topic.name))} {shell(subscription.name)}"
