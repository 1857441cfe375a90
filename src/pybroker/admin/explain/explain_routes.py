"""`.../explain`: reports why messages of a topic or subscription wait, as findings with evidence and suggested calls.

Requests change nothing. Lists in the evidence are limited and contain the number of omitted items.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.routing import Route

from pybroker.admin.calls.call import Call, json_with_nulls
from pybroker.admin.calls.existing import any_subscription_of, persistent
from pybroker.admin.calls.queries import Query
from pybroker.admin.calls.route_paths import SUBSCRIPTION, TOPIC
from pybroker.admin.calls.routing import route
from pybroker.admin.explain.headline import headline
from pybroker.admin.explain.message_subject import message_reasons, parsed_message_id
from pybroker.admin.explain.owner_to_explain import owner_conflict, owner_shown
from pybroker.admin.explain.topic_to_explain import topic_to_explain
from pybroker.admin.inspection.common_parameters import CONSUMER, KEY, consumer_json, key_json, key_of
from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.explain.consumers import consumer_of, of_silent
from pybroker.broker.explain.membership import explain_membership
from pybroker.broker.explain.producers import explain_producer, producer_subject
from pybroker.broker.explain.subscriptions import (
    consumer_subject,
    consumers_named,
    explain_consumer,
    explain_key,
    explain_non_persistent,
    explain_subscription,
)
from pybroker.broker.explain.topics import explain_topic as explain_topic_state
from pybroker.broker.explain.topics import throttled_by_other_topics
from pybroker.broker.inspection.hashes import HashOfKey, hash_of_key, look_up
from pybroker.broker.snapshots.subscription_snapshot import subscription_snapshot
from pybroker.broker.topic.backlog_quota import exceeded_if_known
from pybroker.broker.topic.topic import Topic
from pybroker.errors import AdminError, ServiceNotReady, SubscriptionNotFound
from pybroker.model.findings import Finding, is_waiting, ordered

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.broker.explain.steps import Steps
    from pybroker.broker.topic.backlog_quota import Exceeded
    from pybroker.broker.topic.topic_base import TopicBase

MAX_SUBSCRIPTIONS = 1000
"""Maximum number of listed subscriptions of a topic."""
MESSAGE_ID = Query("messageId", "one message: ledger:entry, or ledger:entry:batchIndex")
REDIRECTED = Query("authoritative", "set by a broker that redirects the call", bool)
PRODUCER = Query("producer", "one producer by name, connected or not")


def routes() -> list[Route]:
    return [
        route("GET", SUBSCRIPTION + "/explain", explain_one, queries=(*KEY, CONSUMER, MESSAGE_ID, REDIRECTED)),
        route("GET", TOPIC + "/explain", explain_topic, queries=(PRODUCER, REDIRECTED)),
    ]


async def explain_one(call: Call) -> Response:
    """Explain why messages of a subscription wait. Without a problem, the list of findings is empty.

    `key` (or `keyBase64`) limits the explanation to messages with this key, `consumer` to messages of this consumer,
    `messageId` to one message.
    """
    name = call.name("subscription")
    await call.require_consume(call.topic_name(), name)
    message_id, key, consumer = call.query("messageId"), key_of(call), call.query("consumer")
    if sum(each is not None for each in (message_id, key, consumer)) > 1:
        raise AdminError(412, "The query can contain only one of key, messageId and consumer")
    topic = await topic_to_explain(call)
    if isinstance(topic, Response):
        return topic
    if isinstance(topic, list):
        return answer(call, _unseen_subject(message_id, key, consumer), topic)
    subscription = any_subscription_of(topic, name)
    if message_id is not None:
        findings = await _of_message(call, topic, subscription, message_id)
        _require_served(topic, subscription)
        return answer(call, _message_subject(message_id), findings)
    if key is None and consumer is None:
        findings = await call.look(_findings(topic, subscription))
        _require_served(topic, subscription)
        return answer(call, subscription_subject(subscription), findings)
    if not isinstance(topic, Topic) or not isinstance(subscription, Subscription):
        raise AdminError(
            405, f"Topic {topic.name} is not persistent: the topic stores no messages, so no message can wait in it"
        )
    if key is not None:
        at = place_of(subscription, key)
        findings = await call.look(explain_key(topic, subscription, None if at is None else at.sticky_hash))
        _require_served(topic, subscription)
        return answer(call, key_subject(key, at), findings)
    assert consumer is not None
    findings = await call.look(explain_consumer(topic, subscription, consumer))
    consumers = await call.look(consumers_named(subscription, consumer))
    _require_served(topic, subscription)
    return answer(call, consumer_subject(subscription, consumer), findings, consumers=consumers)


def _unseen_subject(message_id: str | None, key: bytes | None, consumer: str | None) -> dict[str, Any]:
    if message_id is not None:
        return _message_subject(message_id)
    if key is not None:
        return key_subject(key, None)
    return {"kind": "subscription"} if consumer is None else {"kind": "consumer", "consumer": consumer}


async def _of_message(call: Call, topic: TopicBase, subscription: SubscriptionBase, message_id: str) -> list[Finding]:
    if not isinstance(subscription, Subscription):
        raise AdminError(
            405,
            (
                f"Topic {topic.name} is not persistent: its messages are not stored, so a message cannot be found by "
                "its id"
            ),
        )
    found = await message_reasons(call, persistent(topic), subscription, message_id)
    findings, more = list(found.findings), None
    if found.of_hash is not None:
        more = explain_key(persistent(topic), subscription, found.of_hash)
    elif found.of_subscription:
        more = explain_subscription(persistent(topic), subscription)
    elif found.of_consumer is not None:
        more = of_silent(subscription, [consumer_of(found.of_consumer)])
    return ordered(findings if more is None else findings + await call.look(more))


def _message_subject(message_id: str) -> dict[str, Any]:
    position, batch_index = parsed_message_id(message_id)
    return {"kind": "message", "messageId": f"{position}" if batch_index is None else f"{position}:{batch_index}"}


async def _of_producer(call: Call, topic: TopicBase, producer: str) -> Response:
    quota = await _quota(topic)
    _require_served(topic)
    return answer(call, producer_subject(topic, producer), explain_producer(topic, producer, quota))


async def _quota(topic: TopicBase) -> Exceeded | None:
    return await exceeded_if_known(topic) if isinstance(topic, Topic) else None


async def explain_topic(call: Call) -> Response:
    """Explain why messages of a topic wait. Returns the findings about the topic, and a summary of each
    subscription.
    """
    await call.require_consume(call.topic_name(), "")
    producer = call.query("producer")
    topic = await topic_to_explain(call)
    if isinstance(topic, Response):
        return topic
    if isinstance(topic, list):
        subject = {"kind": "topic"} if producer is None else {"kind": "producer", "producer": producer}
        return answer(call, subject, topic)
    if producer is not None:
        return await _of_producer(call, topic, producer)
    of_topic = explain_topic_state(topic, await _quota(topic))
    of_topic += _of_membership(call) + await owner_conflict(call, topic.name)
    of_topic = ordered(of_topic + await call.look(throttled_by_other_topics(topic)))
    names = sorted(topic.subscriptions)
    listed = await call.look(of_subscriptions(topic, names[:MAX_SUBSCRIPTIONS]))
    _require_served(topic)
    document = {
        "topic": str(topic.name),
        **owner_shown(call),
        "subject": {"kind": "topic", "subscriptions": len(names)},
        "waiting": is_waiting(of_topic) or any(each["waiting"] for each in listed),
        "findings": [finding.as_json() for finding in of_topic],
        "subscriptions": listed,
        "moreSubscriptions": max(0, len(names) - MAX_SUBSCRIPTIONS),
    }
    return json_with_nulls(document | {"headline": headline(document, of_topic)})


def _of_membership(call: Call) -> list[Finding]:
    membership = call.broker.membership
    return explain_membership(None if membership is None else membership.report())


def of_subscriptions(topic: TopicBase, names: list[str]) -> Generator[None, None, list[dict[str, Any]]]:
    """Return summaries of the named subscriptions, without those that were deleted meanwhile. Yields within and after
    each subscription, because a summary can take long.
    """
    listed: list[dict[str, Any]] = []
    for name in names:
        subscription = topic.subscriptions.get(name)
        if subscription is not None:
            findings = yield from _findings(topic, subscription)
            shown = [finding.as_short_json() for finding in findings]
            listed.append({"subscription": name, "waiting": is_waiting(findings), "findings": shown})
        yield
    return listed


def _findings(topic: TopicBase, subscription: SubscriptionBase) -> Steps:
    if not isinstance(topic, Topic) or not isinstance(subscription, Subscription):
        return explain_non_persistent(subscription)
    return (yield from explain_subscription(topic, subscription))


def _require_served(topic: TopicBase, subscription: SubscriptionBase | None = None) -> None:
    if topic.is_fenced:
        raise ServiceNotReady(f"Topic {topic.name} is being unloaded: send the request again")
    if subscription is not None and subscription.is_closed:
        raise SubscriptionNotFound(f"Subscription {subscription.name} was deleted during the request")


def answer(call: Call, subject: dict[str, Any], findings: list[Finding], **more: object) -> Response:
    """Return the response of an explain request: the JSON of the explained object (`subject`), its findings, and the
    members `more`.
    """
    document: dict[str, Any] = {"topic": str(call.topic_name())}
    if "subscription" in call.scope["path_params"]:
        document["subscription"] = call.name("subscription")
    document |= {
        **owner_shown(call),
        "subject": subject,
        "waiting": is_waiting(findings),
        "findings": [finding.as_json() for finding in findings],
        **more,
    }
    return json_with_nulls(document | {"headline": headline(document, findings)})


def subscription_subject(subscription: SubscriptionBase) -> dict[str, Any]:
    snapshot = subscription_snapshot(subscription)
    return {
        "kind": "subscription",
        "type": snapshot.type_name,
        "consumers": snapshot.consumer_count,
        "backlogEntries": snapshot.backlog_entries,
    }


def place_of(subscription: Subscription, key: bytes) -> HashOfKey | None:
    """Return the hash of `key`, with the consumer that owns the hash. None if the subscription type ignores keys, or if
    there are no consumers.
    """
    key_order = subscription.key_order
    if key_order is None or not subscription.consumers:
        return None
    return look_up(key_order, hash_of_key(key_order, key))


def key_subject(key: bytes, at: HashOfKey | None) -> dict[str, Any]:
    if at is None:
        return {"kind": "key", **key_json(key), "hash": None}
    return {
        "kind": "key",
        **key_json(key),
        "hash": at.sticky_hash,
        "consumer": consumer_json(at.owner),
        "state": at.state,
        "waitingEntries": at.listed,
    }
