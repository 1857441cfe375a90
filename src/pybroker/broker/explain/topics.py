"""Findings about a topic: its state, its quotas, and publish rates that delay its producers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from msgspec import to_builtins

from pybroker.broker.explain import actions, bookies
from pybroker.broker.explain.steps import LISTED, PIECE, Steps, counted, for_long, names, wall_ms
from pybroker.broker.topic.backlog_rules import is_quota_above_retention
from pybroker.ledgers.bookie_report import BookiesReport
from pybroker.metadata.session_report import SessionReport, SessionState
from pybroker.model.findings import Action, Code, Finding
from pybroker.model.policies import BacklogQuota, BacklogQuotaPolicy, BacklogQuotaType, PublishRate

if TYPE_CHECKING:
    from pybroker.broker.context.broker_context import BrokerContext
    from pybroker.broker.context.peer import Peer, ThrottledPublish
    from pybroker.broker.context.publish_refusals import Refusal
    from pybroker.broker.delivery.subscription_base import SubscriptionBase
    from pybroker.broker.lifecycle.topic_closing import Ending
    from pybroker.broker.lifecycle.topic_loading import LoadUnderWay
    from pybroker.broker.publishing.producer import Producer
    from pybroker.broker.topic.backlog_quota import Exceeded
    from pybroker.broker.topic.topic import Topic
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.model.names import TopicName
    from pybroker.runtime.clock import Clock


class RateOwner(NamedTuple):
    """Broker, resource group or topic to which a publish rate applies, as text and as evidence, with actions that raise
    the rate.
    """

    text: str
    evidence: dict[str, Any]
    actions: Sequence[Action] = ()


class ThrottledClient(NamedTuple):
    """A client from which the broker does not read, because a message of one of its producers exceeds a publish rate."""

    by: ThrottledPublish
    since_ms: int | None
    owner: RateOwner | None
    """Owner of the exceeded rate. None if no rate is exceeded, but the topic does not accept messages yet."""

    @property
    def reason(self) -> str:
        """Reason as a clause for findings, which begins with the words "the client's producer"."""
        who = f"the client's producer {self.by.producer} of topic {self.by.topic}"
        if self.owner is None:
            return f"{who} has sent a message, and the topic does not accept messages yet"
        return f"{who} publishes more than the publish rate of {self.owner.text} allows"

    @property
    def evidence(self) -> dict[str, Any]:
        by = {"producer": self.by.producer, "topic": str(self.by.topic)}
        return {"throttledBy": by if self.owner is None else {**by, **self.owner.evidence}}

    @property
    def actions(self) -> list[Action]:
        look = actions.explain_producer(self.by.topic, self.by.producer)
        return [look, *(() if self.owner is None else self.owner.actions)]


def owner_of(broker_context: BrokerContext, topic: TopicName, limit: object, rate: PublishRate) -> RateOwner:
    raised = _raised(rate)
    evidence: dict[str, Any] = {
        "messagesPerSecond": rate.publishThrottlingRateInMsg,
        "bytesPerSecond": rate.publishThrottlingRateInByte,
    }
    if limit is broker_context.publish_rate_limit:
        return RateOwner(f"the broker ({_shown(rate)})", {"scope": "broker", **evidence}, _of_broker(rate))
    group = broker_context.resource_group_rates.name_of(limit)
    if group is not None:
        evidence = {"scope": "resourceGroup", "resourceGroup": group, **evidence}
        return RateOwner(f"resource group {group} ({_shown(rate)})", evidence, [actions.show_resource_group(group)])
    text = f"Raise the publish rate of topic {topic.partitioned_name} to {_shown(raised)}"
    action = actions.raise_limit(topic, "publishRate", to_builtins(raised), text)
    return RateOwner(f"topic {topic} ({_shown(rate)})", {"scope": "topic", "topic": str(topic), **evidence}, [action])


def _of_broker(rate: PublishRate) -> list[Action]:
    found = (
        ("brokerPublisherThrottlingMaxMessageRate", rate.publishThrottlingRateInMsg),
        ("brokerPublisherThrottlingMaxByteRate", rate.publishThrottlingRateInByte),
    )
    return [
        actions.raise_configuration(key, 2 * value, f"Raise the broker's {key} to {2 * value:,}")
        for key, value in found
        if value > 0
    ]


def _raised(rate: PublishRate) -> PublishRate:
    messages, size_bytes = rate.publishThrottlingRateInMsg, rate.publishThrottlingRateInByte
    return PublishRate(2 * messages if messages > 0 else messages, 2 * size_bytes if size_bytes > 0 else size_bytes)


def _shown(rate: PublishRate) -> str:
    numbers = ((rate.publishThrottlingRateInMsg, "message"), (rate.publishThrottlingRateInByte, "byte"))
    return f"{' and '.join(counted(number, unit) for number, unit in numbers if number > 0)} a second"


def throttled_client(peer: Peer, broker_context: BrokerContext) -> ThrottledClient | None:
    """Return the publisher on the connection `peer` that the broker throttles, with the reason; None if it throttles none."""
    by = peer.throttled_by
    if by is None:
        return None
    since_ms = None if by.since_ms is None else wall_ms(by.since_ms, broker_context.runtime.clock)
    owner = None if by.rate is None else owner_of(broker_context, by.topic, by.limit, by.rate)
    return ThrottledClient(by, since_ms, owner)


def used_up_rates(topic: TopicBase) -> list[Finding]:
    throttle, clock = topic.publish_throttle, topic.runtime.clock
    findings = []
    for limit in () if throttle is None else throttle.limits:
        if not len(limit):
            continue
        since_ms = limit.oldest_since_ms
        since_ms = None if since_ms is None else wall_ms(since_ms, clock)
        owner = owner_of(topic.broker_context, topic.name, limit, limit.rate)
        findings.append(
            Finding(
                Code.PUBLISH_RATE,
                f"The publish rate of {owner.text} is used up, and {counted(len(limit), 'client waits', 'clients wait')}"
                f"{for_long(since_ms, clock)}.",
                since_ms=since_ms,
                evidence=owner.evidence | {"waitingClients": len(limit)},
                actions=owner.actions,
            )
        )
    return findings


def throttled_by_other_topics(topic: TopicBase) -> Steps:
    """Return a finding about producers that wait because their connection exceeds a publish rate on another topic."""
    found: list[tuple[Producer, ThrottledClient]] = []
    for index, producer in enumerate(list(topic.producers.values())):
        by = producer.peer.throttled_by
        if by is not None and by.topic != topic.name and not producer.is_closed:
            client = throttled_client(producer.peer, topic.broker_context)
            if client is not None:
                found.append((producer, client))
        if index % PIECE == PIECE - 1:
            yield
    if not found:
        return []
    first, client = found[0]
    since_ms = min((each.since_ms for _, each in found if each.since_ms is not None), default=None)
    who = f"the client of producer {first.name}"
    if len(found) > 1:
        who = f"the clients of {len(found):,} producers ({names([each.name for each, _ in found])})"
        reason = f"for producer {first.name}, {client.reason}"
    else:
        reason = client.reason
    long = for_long(since_ms, topic.runtime.clock)
    return [
        Finding(
            Code.CONNECTION_HELD,
            f"The broker does not read from {who}{long}: {reason}.",
            since_ms=since_ms,
            evidence={
                "producers": [{"producer": each.name, **shown.evidence} for each, shown in found[:LISTED]],
                "moreProducers": max(0, len(found) - LISTED),
            },
            actions=client.actions,
        )
    ]


REFUSED_LATELY_MS = 120_000
"""Rejected clients that have not retried for longer have given up: official clients retry at least once a minute."""


SLOW_LOAD_MS = 2_000
"""A load that takes longer may wait for bookies."""


class Whereabouts(NamedTuple):
    """State of a topic that is not loaded.

    `has_conflict`: another process has changed the topic's stored data. `failure`: error of the last load. `metadata`:
    session with a shared metadata store. `bookies`: state of the bookies.
    """

    ending: Ending | None = None
    load: LoadUnderWay | None = None
    is_settled: bool = True
    has_conflict: bool = False
    failure: str = ""
    metadata: SessionReport | None = None
    bookies: BookiesReport | None = None


def explain_unloaded(name: TopicName, found: Whereabouts, clock: Clock) -> list[Finding]:
    """Return findings that explain why an unloaded topic is not available; empty if it can be loaded."""
    ending, load = found.ending, found.load
    findings = []
    if ending is not None:
        what = "deleted" if ending.is_deletion else "closed; the next client loads it again"
        why = f" after an error: {ending.reason}" if ending.reason else ""
        findings.append(
            Finding(
                Code.TOPIC_DELETING if ending.is_deletion else Code.TOPIC_UNLOADING,
                f"Topic {name} is being {what}{for_long(ending.since_ms, clock)}{why}.",
                since_ms=ending.since_ms,
                evidence={"reason": ending.reason} if ending.reason else {},
            )
        )
    findings += explain_metadata(
        f"Topic {name} is not loaded, and cannot be loaded now", found.metadata, clock, waits=True
    )
    if found.has_conflict:
        text = (
            f"Another process has changed the metadata of topic {name}. The broker closes the topic and loads it again."
        )
        findings.append(Finding(Code.METADATA_CONFLICT, text))
    if not found.is_settled:
        findings.append(
            Finding(
                Code.TOPIC_CHANGING,
                f"The namespace or the partitioned topic of {name} is being created, extended, or deleted; requests wait until"
                " the operation is complete.",
            )
        )
    if load is not None:
        findings.append(_loading(name, load, clock))
    if found.failure or (load is not None and clock.wall_ms() - load.since_ms >= SLOW_LOAD_MS):
        findings += bookies.of_unloaded_topic(name, found.bookies, found.failure, clock)
    if found.failure:
        findings.append(
            Finding(
                Code.TOPIC_LOAD_FAILED,
                f"Topic {name} cannot be loaded: {found.failure}. Clients retry.",
                evidence={"error": found.failure},
            )
        )
    return findings


def explain_metadata(text: str, session: SessionReport | None, clock: Clock, *, waits: bool) -> list[Finding]:
    """Return a finding that explains why the metadata store cannot be used; empty if it can. `text`: consequence for
    the topic, with which the finding begins. `waits`: whether this blocks clients.
    """
    if session is None or session.state is SessionState.CONNECTED:
        return []
    since_ms = round(clock.wall_ms() - session.state_age_ms)
    return [
        Finding(
            Code.METADATA_UNREACHABLE,
            f"{text}: the session with the metadata store {session.url} is {session.state.value}{for_long(since_ms, clock)}"
            f" ({session.last_failure}).",
            waits=waits,
            since_ms=since_ms,
            evidence={
                "metadataStore": session.url,
                "session": session.state.value,
                "lastFailure": session.last_failure,
                "suspensions": session.suspensions,
                "losses": session.losses,
            },
        )
    ]


def _loading(name: TopicName, load: LoadUnderWay, clock: Clock) -> Finding:
    evidence: dict[str, Any] = {"step": load.step, "waitingRequests": load.waiters}
    more = ""
    if load.before:
        evidence["loadsBefore"] = load.before
        more = f", after {counted(load.before, 'other load')}"
    elif load.replay is not None:
        done, in_all = load.replay
        evidence |= {"replayedEntries": done, "entriesToReplay": in_all}
        more = f", {done:,} of {counted(in_all, 'entry', 'entries')} replayed"
    return Finding(
        Code.TOPIC_LOADING,
        f"Topic {name} is being loaded{for_long(load.since_ms, clock)}: it {load.step}{more}. "
        f"{counted(load.waiters, 'request waits', 'requests wait')} for the topic.",
        since_ms=load.since_ms,
        evidence=evidence,
    )


def explain_topic(topic: TopicBase, quota: Exceeded | None) -> list[Finding]:
    """Return the findings about a loaded topic. `quota`: the topic's exceeded backlog quota, or None."""
    findings = _metadata(topic) + _publishing(topic, quota)
    refused = topic.broker_context.refusals.of(str(topic.name), topic.runtime.clock.wall_ms())
    if refused:
        findings.append(_refused(topic, refused))
    return findings + _compaction(topic) + _readers(topic)


def _metadata(topic: TopicBase) -> list[Finding]:
    text = (
        f"Topic {topic.name} continues with the policies that the broker knows; changes of policies, new topics and new"
        " schemas wait"
    )
    session = topic.broker_context.metadata_store.session_report
    return explain_metadata(text, session, topic.runtime.clock, waits=False)


def _readers(topic: TopicBase) -> list[Finding]:
    if not topic.name.is_persistent or (pending := cast("Topic", topic).transactions.pending_end) is None:
        return []
    waiting = cast("Topic", topic).transactions.waiting_readers
    return [
        Finding(
            Code.TRANSACTION_END_PENDING,
            f"Transaction {pending.txn} was open when topic {topic.name} was loaded, and {pending.reason}. "
            "Until then, requests for the last message id wait"
            f"{f' ({waiting:,} now)' if waiting else ''}.",
            waits=waiting > 0,
            since_ms=topic.loaded_ms,
            evidence={
                "transaction": str(pending.txn),
                "isCommitted": pending.is_committed,
                "waitingReaders": waiting,
            },
            actions=(actions.show_transaction(pending.txn), actions.show_coordinator(pending.txn)),
        )
    ]


def _publishing(topic: TopicBase, quota: Exceeded | None) -> list[Finding]:
    findings = [_quota(topic, quota)] if quota is not None else []
    findings += used_up_rates(topic)
    return findings + _stored(cast("Topic", topic)) if topic.name.is_persistent else findings


def _stored(topic: Topic) -> list[Finding]:
    ledger, clock = topic.ledger, topic.runtime.clock
    findings = []
    refusal = topic.broker_context.ledgers.store.refusal()
    if refusal is not None:
        findings.append(Finding(Code.DISK_FULL, f"Publishing is refused: {refusal}.", evidence={"reason": refusal}))
    waits_for_bookies = bookies.of_stored_topic(topic)
    findings += waits_for_bookies
    if waits_for_bookies:
        pass  # They say why the ledger cannot be written.
    elif ledger.is_write_failed:
        findings.append(
            Finding(
                Code.STORAGE_FAILED,
                f"A write to ledger {ledger.current_ledger_id} of {topic.name} failed. The broker refuses messages for the topic "
                "until it has created the next ledger, which it retries.",
                evidence={"ledgerId": ledger.current_ledger_id, "pendingEntries": ledger.pending_entries},
            )
        )
    elif ledger.is_changing_ledger:
        changing_since_ms = wall_ms(ledger.changing_since_ms, clock)
        error = f"; the last attempt failed: {ledger.change_error}" if ledger.change_error else ""
        findings.append(
            Finding(
                Code.STORAGE_FAILED,
                f"{counted(ledger.pending_entries, 'entry waits', 'entries wait')}{for_long(changing_since_ms, clock)} until the "
                f"broker has closed ledger {ledger.current_ledger_id} of {topic.name} and opened the next ledger{error}.",
                since_ms=changing_since_ms,
                evidence={"ledgerId": ledger.current_ledger_id, "pendingEntries": ledger.pending_entries},
            )
        )
    deduplication = topic.deduplication
    if deduplication.is_recovering:
        done, in_all = deduplication.replayed_entries, deduplication.replay_entries
        since_ms = wall_ms(deduplication.recovering_since_ms, clock) if deduplication.recovering_since_ms else None
        error = f"; it failed and is retried: {deduplication.last_error}" if deduplication.last_error else ""
        findings.append(
            Finding(
                Code.DEDUPLICATION_RECOVERING,
                f"Topic {topic.name} reads its stored messages to restore deduplication{for_long(since_ms, clock)}, {done:,} of "
                f"{counted(in_all, 'entry', 'entries')} so far{error}. Publishing is blocked until then.",
                since_ms=since_ms,
                evidence={"replayedEntries": done, "entriesToReplay": in_all, "status": str(deduplication.status)},
            )
        )
    if topic.transactions.is_beginning:
        text = f"Topic {topic.name} creates the cursor of its transactions; publishing is blocked until the cursor is stored."
        findings.append(Finding(Code.TRANSACTIONS_BEGINNING, text))
    if ledger.is_terminated:
        findings.append(terminated(topic, waits=False))
    return findings


def terminated(topic: Topic, *, waits: bool) -> Finding:
    """Return the finding that the topic is terminated. `waits`: whether a producer tries to publish, which makes the
    finding blocking.
    """
    last = topic.ledger.last_confirmed
    return Finding(
        Code.TOPIC_TERMINATED,
        f"Topic {topic.name} was terminated after {last}: it accepts no more messages.",
        waits=waits,
        evidence={"lastMessageId": None if last.entry_id < 0 else str(last)},
    )


def _quota(topic: TopicBase, found: Exceeded) -> Finding:
    quota, name, slowest = found.quota, topic.name, topic.subscriptions.get(found.subscription)
    if found.is_of_size:
        measured = f"{found.size_bytes:,} bytes, with a limit of {quota.limitSize:,}"
        evidence: dict[str, Any] = {"backlogBytes": found.size_bytes, "limitBytes": quota.limitSize}
    else:
        measured = f"{found.age_s:,} s old, with a limit of {quota.limitTime:,}"
        evidence = {"backlogAgeSeconds": found.age_s, "limitSeconds": quota.limitTime}
    # A limit of 0 is exceeded even without a subscription.
    whose = f"of subscription {found.subscription}" if found.subscription else f"of topic {name}"
    return Finding(
        Code.BACKLOG_QUOTA,
        f"The backlog {whose} is {measured}: new producers are refused ({quota.policy}).",
        evidence={"subscription": found.subscription or None, "policy": str(quota.policy), **evidence},
        actions=_about_quota(topic, found, slowest),
    )


def _about_quota(topic: TopicBase, found: Exceeded, slowest: SubscriptionBase | None) -> list[Action]:
    quota, name = found.quota, topic.name
    if found.is_of_size:
        kind, size_bytes, time_s = BacklogQuotaType.SIZE, 2 * max(quota.limitSize, found.size_bytes, 1), quota.limitTime
        text = f"Raise the backlog quota from {quota.limitSize:,} to {size_bytes:,} bytes"
    else:
        kind, size_bytes, time_s = BacklogQuotaType.AGE, quota.limitSize, 2 * max(quota.limitTime, found.age_s)
        text = f"Raise the backlog quota from {quota.limitTime:,} to {time_s:,} seconds"
    raised = BacklogQuota(str(quota.policy), limitSize=size_bytes, limitTime=time_s)
    body = {"limitSize": size_bytes, "limitTime": time_s, "policy": str(quota.policy)}
    suggested = [] if slowest is None else [actions.explain_subscription(slowest)]
    # The broker refuses a size quota that is not below the retention size, so that action is not suggested.
    if not (found.is_of_size and is_quota_above_retention(raised, topic.policies.retention)):
        suggested.append(actions.raise_limit(name, "backlogQuota", body, text, str(kind)))
    if slowest is not None:
        evicting = {"limitSize": quota.limitSize, "limitTime": quota.limitTime, "policy": str(BacklogQuotaPolicy.EVICT)}
        suggested.append(actions.evict_backlog(name, evicting, str(kind)))
        suggested.append(actions.skip_all(slowest))
    return suggested


def _refused(topic: TopicBase, refused: list[Refusal]) -> Finding:
    now_ms, latest = topic.runtime.clock.wall_ms(), refused[0]
    return Finding(
        Code.PRODUCERS_REFUSED,
        f"{counted(len(refused), 'producer or its messages were', 'producers or their messages were')} refused recently; the last "
        f"refusal was {latest.error.__name__}: {latest.text}.",
        waits=any(not each.is_of_messages and now_ms - each.last_ms <= REFUSED_LATELY_MS for each in refused),
        since_ms=min(each.first_ms for each in refused),
        evidence={
            "refused": [shown_refusal(each) for each in refused[:LISTED]],
            "more": max(0, len(refused) - LISTED),
        },
    )


def shown_refusal(refusal: Refusal) -> dict[str, Any]:
    return {
        "producer": refusal.producer or None,
        "address": refusal.address,
        "error": refusal.error.__name__,
        "text": refusal.text,
        "ofMessages": refusal.is_of_messages,
        "first": refusal.first_ms,
        "last": refusal.last_ms,
        "count": refusal.count,
    }


def _compaction(topic: TopicBase) -> list[Finding]:
    if not topic.name.is_persistent:
        return []
    compaction = cast("Topic", topic).compaction
    if compaction.is_running:
        return [
            Finding(
                Code.COMPACTION_RUNNING,
                f"Topic {topic.name} is being compacted, or waits for the compaction of other topics.",
                waits=False,
            )
        ]
    if not compaction.has_failed:
        return []
    return [
        Finding(
            Code.COMPACTION_FAILED,
            f"The last compaction of {topic.name} failed: {compaction.last_error}.",
            waits=False,
            since_ms=compaction.counters.last_failed_ms or None,
            evidence={"error": compaction.last_error, "failures": compaction.counters.failed},
            actions=[actions.compact_again(topic.name)],
        )
    ]
