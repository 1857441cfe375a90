"""What state a topic is in that keeps it from serving, or that somebody who looks at it wants to know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pybroker.broker.explain import actions
from pybroker.broker.explain.steps import LISTED, counted, for_long, wall_ms
from pybroker.model.findings import Action, Code, Finding

if TYPE_CHECKING:
    from pybroker.broker.lifecycle.topic_closing import Ending
    from pybroker.broker.lifecycle.topic_loading import LoadUnderWay
    from pybroker.broker.publishing.refusals import Refusal
    from pybroker.broker.topic.backlog_quota import Exceeded
    from pybroker.broker.topic.topic import Topic
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.clock import Clock
    from pybroker.model.names import TopicName

REFUSED_LATELY_MS = 120_000
"""A client that was refused longer ago, and has not come again, has given up: official ones come at least once a minute."""


class Whereabouts(NamedTuple):
    """What is known of a topic that cannot be looked at now. `has_conflict`: somebody else has changed what is stored of it.
    `failure`: why its last load failed."""

    ending: Ending | None = None
    load: LoadUnderWay | None = None
    is_settled: bool = True
    has_conflict: bool = False
    failure: str = ""


def explain_unloaded(name: TopicName, found: Whereabouts, clock: Clock) -> list[Finding]:
    """Why a topic is not there to be looked at; nothing when nothing keeps it from being loaded."""
    ending, load = found.ending, found.load
    findings = []
    if ending is not None:
        what = "deleted" if ending.is_deletion else "closed, to be loaded anew for the next client"
        why = f", as something went wrong in it: {ending.reason}" if ending.reason else ""
        findings.append(
            Finding(
                Code.TOPIC_DELETING if ending.is_deletion else Code.TOPIC_UNLOADING,
                f"Topic {name} is being {what}{for_long(ending.since_ms, clock)}{why}.",
                since_ms=ending.since_ms,
                evidence={"reason": ending.reason} if ending.reason else {},
            )
        )
    if found.has_conflict:
        text = f"Somebody else has changed the metadata of {name}: it is closed, and loaded anew as they left it."
        findings.append(Finding(Code.METADATA_CONFLICT, text))
    if not found.is_settled:
        findings.append(
            Finding(
                Code.TOPIC_CHANGING,
                f"The namespace or the partitioned topic of {name} is being made, grown or deleted; requests wait for that.",
            )
        )
    if load is not None:
        findings.append(_loading(name, load, clock))
    if found.failure:
        findings.append(
            Finding(
                Code.TOPIC_LOAD_FAILED,
                f"Topic {name} cannot be loaded: {found.failure}. Every client that asks for it tries again.",
                evidence={"error": found.failure},
            )
        )
    return findings


def _loading(name: TopicName, load: LoadUnderWay, clock: Clock) -> Finding:
    evidence: dict[str, Any] = {"step": load.step, "waitingRequests": load.waiters}
    more = ""
    if load.before:
        evidence["loadsBefore"] = load.before
        more = f", behind {counted(load.before, 'other load')}"
    elif load.replay is not None:
        done, in_all = load.replay
        evidence |= {"replayedEntries": done, "entriesToReplay": in_all}
        more = f", {done:,} of {counted(in_all, 'entry', 'entries')} read again"
    return Finding(
        Code.TOPIC_LOADING,
        f"Topic {name} is being loaded{for_long(load.since_ms, clock)}: it {load.step}{more}. "
        f"{counted(load.waiters, 'request waits', 'requests wait')} for it.",
        since_ms=load.since_ms,
        evidence=evidence,
    )


def explain_topic(topic: TopicBase, quota: Exceeded | None) -> list[Finding]:
    """Of a topic that is loaded; `quota` is what of its backlog quotas is exceeded, as was measured."""
    findings = _publishing(topic, quota)
    refused = topic.commons.refusals.of(str(topic.name), topic.surroundings.clock.wall_ms())
    if refused:
        findings.append(_refused(topic, refused))
    return findings + _compaction(topic)


def _publishing(topic: TopicBase, quota: Exceeded | None) -> list[Finding]:
    """What keeps everybody from publishing."""
    findings = [_quota(topic, quota)] if quota is not None else []
    findings += publish_rates(topic)
    return findings + _stored(cast("Topic", topic)) if topic.name.is_persistent else findings


def _stored(topic: Topic) -> list[Finding]:
    """The same where messages are stored."""
    ledger, clock = topic.ledger, topic.surroundings.clock
    findings = []
    refusal = topic.commons.ledgers.store.refusal()
    if refusal is not None:
        findings.append(Finding(Code.DISK_FULL, f"Publishing is refused: {refusal}.", evidence={"reason": refusal}))
    if ledger.is_write_failed:
        findings.append(
            Finding(
                Code.STORAGE_FAILED,
                f"A write to ledger {ledger.current_ledger_id} of {topic.name} failed: its messages are refused until the next "
                "ledger is ready, which is tried again and again.",
                evidence={"ledgerId": ledger.current_ledger_id, "pendingEntries": ledger.pending_entries},
            )
        )
    deduplication = topic.deduplication
    if deduplication.is_recovering:
        done, in_all = deduplication.replayed_entries, deduplication.replay_entries
        since_ms = wall_ms(deduplication.recovering_since_ms, clock) if deduplication.recovering_since_ms else None
        error = f"; it failed and is tried again: {deduplication.last_error}" if deduplication.last_error else ""
        findings.append(
            Finding(
                Code.DEDUPLICATION_RECOVERING,
                f"Topic {topic.name} looks up which messages it has stored{for_long(since_ms, clock)}, {done:,} of "
                f"{counted(in_all, 'entry', 'entries')} so far{error}. Nobody can publish meanwhile.",
                since_ms=since_ms,
                evidence={"replayedEntries": done, "entriesToReplay": in_all, "status": str(deduplication.status)},
            )
        )
    if topic.transactions.is_beginning:
        text = f"Topic {topic.name} makes the cursor of its transactions; nobody can publish before that is stored."
        findings.append(Finding(Code.TRANSACTIONS_BEGINNING, text))
    if ledger.is_terminated:
        findings.append(terminated(topic, waits=False))
    return findings


def terminated(topic: Topic, *, waits: bool) -> Finding:
    """It has come to its end; `waits` when somebody wants to publish all the same."""
    last = topic.ledger.last_confirmed
    return Finding(
        Code.TOPIC_TERMINATED,
        f"Topic {topic.name} was terminated behind {last}: it takes no more messages, for ever.",
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
    # A limit of 0 is exceeded before anybody has subscribed.
    whose = f"of subscription {found.subscription}" if found.subscription else f"of topic {name}"
    return Finding(
        Code.BACKLOG_QUOTA,
        f"The backlog {whose} is {measured}: no producer is let in ({quota.policy}).",
        evidence={"subscription": found.subscription or None, "policy": str(quota.policy), **evidence},
        actions=[
            *([] if slowest is None else [actions.skip_all(slowest)]),
            actions.set_policy(
                name,
                f"backlogQuota?backlogQuotaType={'destination_storage' if found.is_of_size else 'message_age'}",
                {"limitSize": quota.limitSize, "limitTime": quota.limitTime, "policy": "consumer_backlog_eviction"},
                "Raise the quota, or have the oldest messages dropped in place of refusing producers",
            ),
        ],
    )


def publish_rates(topic: TopicBase) -> list[Finding]:
    """The publish rates for which clients wait."""
    throttle, clock = topic.publish_throttle, topic.surroundings.clock
    findings = []
    for limit in () if throttle is None else throttle.limits:
        if not len(limit):
            continue
        since_ms = limit.oldest_since_ms
        since_ms = None if since_ms is None else wall_ms(since_ms, clock)
        whose, evidence = whose_rate(topic, limit)
        findings.append(
            Finding(
                Code.PUBLISH_RATE,
                f"The publish rate of {whose} is used up, and {counted(len(limit), 'client waits', 'clients wait')}"
                f"{for_long(since_ms, clock)}.",
                since_ms=since_ms,
                evidence=evidence | {"waitingClients": len(limit)},
            )
        )
    return findings


def whose_rate(topic: TopicBase, limit: object) -> tuple[str, dict[str, Any]]:
    """Whose publish rate `limit` of this topic's throttle is, in words and as evidence."""
    throttle, commons = topic.publish_throttle, topic.commons
    if throttle is not None and throttle.own is not None and limit is throttle.own:
        scope, whose, rate = "topic", f"topic {topic.name}", throttle.own.rate
    elif commons.publish_rate_limit is not None and limit is commons.publish_rate_limit:
        scope, whose, rate = "broker", "the broker", commons.publish_rate_limit.rate
    else:
        name = topic.policies.resource_group
        group = commons.resource_group_rates.of(name).publish_rate_limit
        if group is None:
            return "another topic", {"scope": "other"}
        scope, whose, rate = "resourceGroup", f"resource group {name}", group.rate
    messages, size_bytes = rate.publishThrottlingRateInMsg, rate.publishThrottlingRateInByte
    parts = [
        text
        for text, number in ((f"{messages:,} messages", messages), (f"{size_bytes:,} bytes", size_bytes))
        if number > 0
    ]
    evidence = {"scope": scope, "messagesPerSecond": messages, "bytesPerSecond": size_bytes}
    return f"{whose} ({' and '.join(parts)} a second)", evidence


def _refused(topic: TopicBase, refused: list[Refusal]) -> Finding:
    now_ms, latest = topic.surroundings.clock.wall_ms(), refused[0]
    return Finding(
        Code.PRODUCERS_REFUSED,
        f"{counted(len(refused), 'producer or its messages were', 'producers or their messages were')} refused lately; the last "
        f"one with {latest.error.__name__}: {latest.text}.",
        waits=any(not each.is_of_messages and now_ms - each.last_ms <= REFUSED_LATELY_MS for each in refused),
        since_ms=min(each.first_ms for each in refused),
        evidence={
            "refused": [shown_refusal(each) for each in refused[:LISTED]],
            "more": max(0, len(refused) - LISTED),
        },
    )


def shown_refusal(refusal: Refusal) -> dict[str, Any]:
    """As evidence."""
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
    path = actions.topic_path(topic.name) + "/compaction"
    if compaction.is_running:
        return [
            Finding(
                Code.COMPACTION_RUNNING, f"Topic {topic.name} is being compacted, or waits for its turn.", waits=False
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
            actions=[Action("Compact it again", "PUT", path)],
        )
    ]
