"""REST calls that findings suggest as remedies. `model.findings.safest_first` sorts them from harmless to irreversible.

A rule suggests a call only if it can help. The broker authorizes it like any other call.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from pybroker.model.findings import Action, Severity, shell_command
from pybroker.model.txn_id import ID_BASE_BESIDE_PULSAR

if TYPE_CHECKING:
    from pybroker.broker.delivery.consumer import Consumer
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.broker.topic.topic import Topic
    from pybroker.model.names import TopicName
    from pybroker.model.position import Position
    from pybroker.model.txn_id import TxnId

LOOK, HARMLESS = Severity.LOOK, Severity.HARMLESS
DISRUPTIVE, IRREVERSIBLE = Severity.DISRUPTIVE, Severity.IRREVERSIBLE


def topic_path(topic: TopicName) -> str:
    parts = (topic.domain, topic.tenant, topic.namespace.local_name, topic.local_name)
    return "/admin/v2/" + "/".join(quote(part, safe="") for part in parts)


def subscription_path(subscription: SubscriptionBase) -> str:
    return f"{topic_path(subscription.topic.name)}/subscription/{quote(subscription.name, safe='')}"


# --- queries ---------------------------------------------------------------------------------------------------------


def explain_subscription(subscription: SubscriptionBase) -> Action:
    text = f"Explain subscription {subscription.name}"
    return _of_subscription(LOOK, subscription, text, "GET", "/explain", "explain")


def explain_consumer(consumer: Consumer) -> Action:
    text, rest = f"Explain consumer {consumer.name}", f"/explain?consumer={quote(consumer.name, safe='')}"
    which = _option("--consumer", consumer.name)
    return _of_subscription(LOOK, consumer.subscription, text, "GET", rest, "explain", which)


def explain_producer(topic: TopicName, name: str) -> Action:
    path = f"{topic_path(topic)}/explain?producer={quote(name, safe='')}"
    command = _command("explain", str(topic), _option("--producer", name))
    return Action(LOOK, f"Explain producer {name}", "GET", path, command)


def show_subscriptions(topic: TopicName) -> Action:
    """Suggest the REST call that lists the topic's subscriptions."""
    text = "Show the topic's subscriptions, their consumers and backlogs"
    return Action(LOOK, text, "GET", topic_path(topic) + "/stats", _command("subscriptions", str(topic)))


def show_unacked(consumer: Consumer) -> Action:
    text = f"List the messages that consumer {consumer.name} has not acknowledged"
    rest, which = f"/unacked?consumer={quote(consumer.name, safe='')}", _option("--consumer", consumer.name)
    return _of_subscription(LOOK, consumer.subscription, text, "GET", rest, "unacked", which)


def show_draining_hashes(subscription: SubscriptionBase) -> Action:
    return _of_subscription(LOOK, subscription, "List all blocked keys", "GET", "/drainingHashes", "draining")


def show_waiting(subscription: SubscriptionBase) -> Action:
    return _of_subscription(
        LOOK, subscription, "List the hashes whose messages fill the look-ahead buffer", "GET", "/waiting", "waiting"
    )


def show_delayed(subscription: SubscriptionBase) -> Action:
    return _of_subscription(LOOK, subscription, "List the delayed messages", "GET", "/delayed", "delayed")


def show_transaction(txn: TxnId) -> Action:
    path = f"/admin/v3/transactions/transactionMetadata/{txn.most}/{txn.least}"
    return Action(LOOK, f"Show transaction {txn}", "GET", path, _command("transactions", "show", _txn(txn)))


def show_coordinator(txn: TxnId) -> Action:
    path = f"/admin/v3/transactions/coordinatorStats?coordinatorId={txn.most}"
    return _by_api(LOOK, f"Show transaction coordinator {txn.most}", "GET", path)


def show_resource_group(name: str) -> Action:
    return _by_api(LOOK, f"Show resource group {name}", "GET", f"/admin/v2/resourcegroups/{quote(name, safe='')}")


# --- harmless --------------------------------------------------------------------------------------------------------


def deliver_now(subscription: SubscriptionBase, position: Position) -> Action:
    text, rest = f"Deliver message {position} now", _message(position) + "/delay"
    return _of_subscription(HARMLESS, subscription, text, "DELETE", rest, "delay", str(position), "--now")


def raise_limit(topic: TopicName, policy: str, body: object, text: str, kind: str = "") -> Action:
    return _set_policy(HARMLESS, topic, policy, body, text, kind)


def raise_subscription_dispatch_rate(subscription: SubscriptionBase, rate: object, text: str) -> Action:
    """Suggest setting the dispatch rate of this subscription to `rate` (JSON), which overrides the rates of topic and
    namespace. `text` describes the action.
    """
    name = subscription.topic.name
    path = f"{topic_path(_whole(name))}/{quote(subscription.name, safe='')}/dispatchRate"
    return _by_api(HARMLESS, text, "POST", path, rate)


def raise_configuration(key: str, value: int, text: str) -> Action:
    return _by_api(HARMLESS, text, "POST", f"/admin/v2/brokers/configuration/{key}/{value}")


def compact_again(topic: TopicName) -> Action:
    return _by_api(HARMLESS, "Compact the topic again", "PUT", topic_path(topic) + "/compaction")


# --- disruptive ------------------------------------------------------------------------------------------------------


def disconnect(consumer: Consumer) -> Action:
    outcome = (
        "other consumers receive its unacknowledged messages, and its client subscribes again"
        if _has_takers(consumer)
        else "its client subscribes again and receives its unacknowledged messages again"
    )
    rest = f"/consumer/{quote(consumer.name, safe='')}/disconnect?consumerId={consumer.consumer_id}"
    which = (_option("--consumer", consumer.name), _option("--consumer-id", str(consumer.consumer_id)))
    text = f"Disconnect consumer {consumer.name}: {outcome}"
    return _of_subscription(DISRUPTIVE, consumer.subscription, text, "POST", rest, "disconnect", *which)


def hand_over(consumer: Consumer) -> list[Action]:
    """Suggest disconnecting `consumer`, so that another consumer receives its messages. The list is empty if no other
    consumer can receive them.
    """
    return [disconnect(consumer)] if _has_takers(consumer) else []


def _has_takers(consumer: Consumer) -> bool:
    individual = cast("Subscription", consumer.subscription).individual
    if consumer.state.key_shared.ranges:
        return False  # No other consumer may receive messages of its hash ranges.
    others = [each for each in consumer.subscription.consumers if each is not consumer]
    return any(each.state.can_take() for each in others) if individual is not None else bool(others)


def disconnect_producer(topic: TopicName, name: str) -> Action:
    return Action(
        DISRUPTIVE,
        f"Disconnect producer {name}: its client reconnects, and waits for the producers in the queue",
        "POST",
        f"{topic_path(topic)}/producer/{quote(name, safe='')}/disconnect",
        _command("disconnect", str(topic), _option("--producer", name)),
    )


def redeliver(subscription: SubscriptionBase, position: Position) -> Action:
    text, rest = f"Deliver message {position} again now", _message(position) + "/redeliver"
    return _of_subscription(DISRUPTIVE, subscription, text, "POST", rest, "redeliver", str(position))


def seek_to(subscription: SubscriptionBase, position: Position) -> Action:
    text = f"Deliver message {position} and every later message again"
    body = {"ledgerId": position.ledger_id, "entryId": position.entry_id}
    return _of_subscription(DISRUPTIVE, subscription, text, "POST", "/resetcursor", "seek", str(position), body=body)


# --- irreversible ----------------------------------------------------------------------------------------------------


def acknowledge(subscription: SubscriptionBase, position: Position) -> Action:
    text = f"Acknowledge message {position} for subscription {subscription.name}: the subscription never receives the message"
    return _of_subscription(
        IRREVERSIBLE, subscription, text, "POST", _message(position) + "/acknowledge", "ack", str(position)
    )


def skip_all(subscription: SubscriptionBase) -> Action:
    text = f"Skip all messages that subscription {subscription.name} has not acknowledged"
    return _of_subscription(IRREVERSIBLE, subscription, text, "POST", "/skip_all", "skip", "--all")


def delete_subscription(subscription: SubscriptionBase) -> Action:
    text = f"Delete subscription {subscription.name} and its position"
    return _of_subscription(IRREVERSIBLE, subscription, text, "DELETE", "", "delete")


def evict_backlog(topic: TopicName, quota: object, kind: str) -> Action:
    """Suggest changing the topic's backlog quota so that the oldest messages are evicted. `quota`: the effective quota
    with that change (JSON). `kind`: the type of the quota.
    """
    text = "Drop the oldest messages, now and whenever the backlog exceeds the quota, and let producers publish"
    return _set_policy(IRREVERSIBLE, topic, "backlogQuota", quota, text, kind)


def skip_damaged_everywhere() -> Action:
    text = "Skip damaged messages in every subscription of this broker, now and later (autoSkipNonRecoverableData)"
    path = "/admin/v2/brokers/configuration/autoSkipNonRecoverableData/true"
    return _by_api(IRREVERSIBLE, text, "POST", path)


def abort_transaction(txn: TxnId) -> Action:
    return Action(
        IRREVERSIBLE,
        f"Abort transaction {txn}: its messages are dropped, and the messages that it has acknowledged are delivered again",
        "POST",
        f"/admin/v3/transactions/abortTransaction/{txn.most}/{txn.least}",
        _command("transactions", "abort", _txn(txn)),
    )


def of_open_transaction(topic: Topic, txn: TxnId) -> tuple[Action, ...]:
    """Return the actions for an open transaction; none if the coordinator of a Java broker has opened it, because only a
    Java broker can show and end it (`ONLY_JAVA_ENDS_IT`).
    """
    if topic.broker_context.ledgers.store.has_pulsar_layout and txn.least < ID_BASE_BESIDE_PULSAR:
        return ()
    return show_transaction(txn), abort_transaction(txn)


ONLY_JAVA_ENDS_IT = " The coordinator of a Java broker has opened the transaction, and only a Java broker can end it."


# --- commands --------------------------------------------------------------------------------------------------------


def _of_subscription(
    severity: Severity,
    subscription: SubscriptionBase,
    text: str,
    method: str,
    rest: str,
    command: str,
    *arguments: str,
    body: object = None,
) -> Action:
    """Return an action on a subscription. `rest`: the part of the REST path after the subscription. `arguments`:
    further arguments of the command.
    """
    options = [each for each in arguments if each.startswith("-")]
    names = [str(subscription.topic.name), subscription.name, *(each for each in arguments if each not in options)]
    # The command line accepts a name that begins with `-` only after `--`.
    words = [*options, "--", *names] if subscription.name.startswith("-") else [*names, *options]
    path = subscription_path(subscription) + rest
    return Action(severity, text, method, path, _command(command, *words), body)


def _set_policy(severity: Severity, topic: TopicName, policy: str, body: object, text: str, kind: str) -> Action:
    """Return an action that sets a policy; for a partition, on its partitioned topic."""
    whole = _whole(topic)
    query = f"?{policy}Type={kind}" if kind else ""
    command = _command("policies", "set", str(whole), policy, _json(body), *(["--type", kind] if kind else []))
    return Action(severity, text, "POST", f"{topic_path(whole)}/{policy}{query}", command, body)


def _by_api(severity: Severity, text: str, method: str, path: str, body: Any = None) -> Action:
    words = [method, path, *([] if body is None else [_json(body)])]
    return Action(severity, text, method, path, _command("api", *words), body)


def _whole(topic: TopicName) -> TopicName:
    return topic.partitioned_name if topic.partition_index >= 0 else topic


def _json(body: object) -> str:
    return json.dumps(body, separators=(",", ":"))


def _option(name: str, value: str) -> str:
    """Return `--name=value` as one word, so that a value that begins with `-` is not parsed as an option."""
    return f"{name}={value}"


def _command(*words: str) -> str:
    return shell_command(("pybroker", *words))


def _txn(txn: TxnId) -> str:
    return f"{txn.most}:{txn.least}"


def _message(position: Position) -> str:
    return f"/message/{position.ledger_id}/{position.entry_id}"
