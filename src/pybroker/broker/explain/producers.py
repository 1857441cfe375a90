"""Findings about a producer name: why its connection attempts are rejected, or why its messages wait or fail."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from pybroker.broker.explain import actions
from pybroker.broker.explain.steps import LISTED, client_address, counted, for_long, wall_ms
from pybroker.broker.explain.topics import REFUSED_LATELY_MS, explain_topic, shown_refusal, terminated, throttled_client
from pybroker.errors import (
    AuthorizationError,
    IncompatibleSchema,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    ProducerBusy,
    ProducerFenced,
    TopicTerminatedError,
)
from pybroker.model.findings import Code, Finding, ordered

if TYPE_CHECKING:
    from pybroker.broker.context.publish_refusals import Refusal
    from pybroker.broker.publishing.producer import Producer
    from pybroker.broker.topic.backlog_quota import Exceeded
    from pybroker.broker.topic.topic import Topic
    from pybroker.broker.topic.topic_base import TopicBase
    from pybroker.errors import BrokerError

_CODES: dict[type[BrokerError], Code] = {
    ProducerFenced: Code.PRODUCER_FENCED,
    ProducerBusy: Code.PRODUCER_LIMIT,
    IncompatibleSchema: Code.SCHEMA_REFUSED,
    AuthorizationError: Code.PRODUCER_NOT_AUTHORIZED,
}
_SHOWN_LIVE = {
    ProducerBlockedQuotaExceededError: Code.BACKLOG_QUOTA,
    ProducerBlockedQuotaExceededException: Code.BACKLOG_QUOTA,
    TopicTerminatedError: Code.TOPIC_TERMINATED,
}
"""Errors whose cause can be checked now, with the finding that reports the cause if it still holds."""
_OF_EVERYBODY = {
    Code.METADATA_UNREACHABLE,
    Code.COMPACTION_RUNNING,
    Code.COMPACTION_FAILED,
    Code.PRODUCERS_REFUSED,
    Code.TOPIC_TERMINATED,
    Code.PUBLISH_RATE,
}
"""Findings about a topic that do not concern a producer, or that the rules of this module report themselves."""


def explain_producer(topic: TopicBase, name: str, quota: Exceeded | None) -> list[Finding]:
    """Return the findings, most urgent first. `quota`: the topic's exceeded backlog quota, or None."""
    present = topic.producers.get(name)
    findings = [each for each in explain_topic(topic, quota) if each.code not in _OF_EVERYBODY]
    if present is not None:
        # A quota refuses new producers. Connected producers continue until the next check disconnects them.
        findings = [each for each in findings if each.code is not Code.BACKLOG_QUOTA]
        findings += _attached(topic, present)
        return ordered(findings + _not_heard(present, findings) + _messages_refused(topic, name))
    if topic.name.is_persistent and cast("Topic", topic).ledger.is_terminated:
        findings.append(terminated(cast("Topic", topic), waits=True))
    waiting = next((each for each in topic.producer_registry.waiting if each.name == name), None)
    if waiting is not None:
        return ordered([*findings, _waits(topic, waiting)])
    findings += _kept_out(topic, name, {each.code for each in findings})
    findings += _messages_refused(topic, name)
    return ordered([*findings, _not_connected(topic, name)])


def producer_subject(topic: TopicBase, name: str) -> dict[str, Any]:
    present = topic.producers.get(name)
    is_waiting = any(each.name == name for each in topic.producer_registry.waiting)
    state = "connected" if present is not None else "waiting" if is_waiting else "not connected"
    subject: dict[str, Any] = {"kind": "producer", "producer": name, "state": state}
    if present is not None:
        last = topic.last_sequence_id(name)
        subject |= {**_who(present), "accessMode": str(present.access_mode), "pendingMessages": present.pending}
        if last >= 0:
            subject["lastSequenceId"] = last
    return subject


def _who(producer: Producer) -> dict[str, Any]:
    return {
        "producerId": producer.producer_id,
        "address": client_address(producer.peer.address, producer.properties),
        "connectedSince": producer.connected_since_ms,
    }


# --- producers that are not connected ----------------------------------------------------------------------------------


def _waits(topic: TopicBase, producer: Producer) -> Finding:
    places, clock = topic.producer_registry, topic.runtime.clock
    before = list(places.waiting).index(producer)
    holder = places.holder
    others = ", ".join(islice(topic.producers, 3)) if holder is None else holder.name
    since_ms = producer.connected_since_ms
    more = f", and {counted(before, 'other')} before it" if before else ""
    evidence: dict[str, Any] = {"before": before, "producers": len(topic.producers), **_who(producer)}
    if holder is not None:
        evidence |= {
            "holder": holder.name,
            "holderAddress": holder.peer.address,
            "holderSince": holder.connected_since_ms,
        }
    return Finding(
        Code.PRODUCER_WAITS,
        f"Producer {producer.name} waits{for_long(since_ms, clock)} for exclusive access to {topic.name}, which {others} "
        f"{'has' if holder is not None else 'use'}{more}.",
        since_ms=since_ms,
        evidence=evidence,
        actions=[] if holder is None else [actions.disconnect_producer(topic.name, holder.name)],
    )


def _kept_out(topic: TopicBase, name: str, found: set[Code]) -> list[Finding]:
    clock = topic.runtime.clock
    now_ms = clock.wall_ms()
    findings = []
    for refusal in topic.broker_context.refusals.of(str(topic.name), now_ms):
        is_shown = _SHOWN_LIVE.get(refusal.error) in found
        if refusal.is_of(name) and not refusal.is_of_messages and not is_shown:
            findings.append(_told(refusal, now_ms))
    holder = topic.producer_registry.holder
    if holder is not None:
        findings.append(
            Finding(
                Code.TOPIC_OCCUPIED,
                f"Producer {holder.name} from {holder.peer.address} has had exclusive access to {topic.name}"
                f"{for_long(holder.connected_since_ms, clock)}, so producer {name} cannot connect.",
                waits=bool(findings),
                since_ms=holder.connected_since_ms,
                evidence={"holder": holder.name, **_who(holder)},
                actions=[actions.disconnect_producer(topic.name, holder.name)],
            )
        )
    return findings


def _told(refusal: Refusal, now_ms: int) -> Finding:
    again = f", the last of {counted(refusal.count, 'time')}" if refusal.count > 1 else ""
    return Finding(
        _CODES.get(refusal.error, Code.PRODUCER_REFUSED),
        f"Producer {refusal.producer} was refused at its last attempt{again}: {refusal.error.__name__}: {refusal.text}.",
        waits=now_ms - refusal.last_ms <= REFUSED_LATELY_MS,
        since_ms=refusal.first_ms,
        evidence=shown_refusal(refusal),
    )


def _not_connected(topic: TopicBase, name: str) -> Finding:
    count = len(topic.producers)
    return Finding(
        Code.PRODUCER_NOT_CONNECTED,
        f"No producer {name} is connected to {topic.name}, which has {counted(count, 'producer')}.",
        waits=False,
        evidence={"producers": list(islice(topic.producers, LISTED)), "more": max(0, count - LISTED)},
    )


def _messages_refused(topic: TopicBase, name: str) -> list[Finding]:
    findings = []
    for refusal in topic.broker_context.refusals.of(str(topic.name), topic.runtime.clock.wall_ms()):
        if refusal.is_of(name) and refusal.is_of_messages:
            text = (
                f"{counted(refusal.count, 'message')} of producer {name} {'was' if refusal.count == 1 else 'were'} refused, the "
                f"last with {refusal.error.__name__}: {refusal.text}."
            )
            findings.append(
                Finding(
                    Code.MESSAGES_REFUSED, text, waits=False, since_ms=refusal.first_ms, evidence=shown_refusal(refusal)
                )
            )
    return findings


# --- connected producers -----------------------------------------------------------------------------------------------


def _attached(topic: TopicBase, producer: Producer) -> list[Finding]:
    findings = _deduplication(cast("Topic", topic), producer) if topic.name.is_persistent else []
    return findings + _throttled(topic, producer) + _held(topic, producer)


def _not_heard(producer: Producer, found: list[Finding]) -> list[Finding]:
    why = producer.peer.not_heard_because
    if why is None or any(each.waits for each in found):
        return []
    text = f"The broker does not read from the client of producer {producer.name} now: {why}."
    return [Finding(Code.CONNECTION_HELD, text, evidence={"reason": why, **_who(producer)})]


def _deduplication(topic: Topic, producer: Producer) -> list[Finding]:
    known = topic.deduplication.known
    if known is None:
        return []
    if known.has_failed(producer.name, producer):
        return [
            Finding(
                Code.DEDUPLICATION_GAP,
                f"A message of producer {producer.name} was not stored. The broker refuses later messages of the producer "
                "until its client reconnects. Clients reconnect by themselves.",
                evidence={"lastSequenceId": known.last_sequence_id(producer.name)},
            )
        ]
    dropped = known.dropped_of(producer.name)
    if dropped is None:
        return []
    last = known.last_sequence_id(producer.name)
    return [
        Finding(
            Code.SEQUENCE_ID_STALE,
            f"{counted(dropped.messages, 'consecutive message')} of producer {producer.name} "
            f"{'was' if dropped.messages == 1 else 'were'} dropped as duplicates, the last with sequence id "
            f"{dropped.last_sequence_id}: the highest stored sequence id is {last}.",
            evidence={
                "lastSequenceId": last,
                "droppedSequenceId": dropped.last_sequence_id,
                "droppedMessages": dropped.messages,
            },
        )
    ]


def _throttled(topic: TopicBase, producer: Producer) -> list[Finding]:
    client = throttled_client(producer.peer, topic.broker_context)
    if client is None:
        return []
    clock = topic.runtime.clock
    how_long, owner = for_long(client.since_ms, clock), client.owner
    if client.by.producer == producer.name and client.by.topic == topic.name:
        if owner is None:
            return []  # Another finding reports why the topic accepts no messages.
        in_queue = client.by.waiting_clients
        return [
            Finding(
                Code.PUBLISH_RATE,
                f"The client of producer {producer.name} waits{how_long} for the publish rate of {owner.text}, with "
                f"{counted(in_queue, 'client')} in the queue.",
                since_ms=client.since_ms,
                evidence=owner.evidence | {"waitingClients": in_queue, **_who(producer)},
                actions=owner.actions,
            )
        ]
    return [
        Finding(
            Code.CONNECTION_HELD,
            f"The broker does not read from the client of producer {producer.name}{how_long}: {client.reason}.",
            since_ms=client.since_ms,
            evidence=client.evidence | _who(producer),
            actions=client.actions,
        )
    ]


def _held(topic: TopicBase, producer: Producer) -> list[Finding]:
    waits_since_ms = producer.peer.memory_waits.publishes_since_ms
    if waits_since_ms is None:
        return []
    since_ms = wall_ms(waits_since_ms, topic.runtime.clock)
    return [
        Finding(
            Code.PUBLISH_MEMORY,
            f"The broker does not read from the client of producer {producer.name}{for_long(since_ms, topic.runtime.clock)}: too "
            "many bytes of messages wait to be stored (maxMessagePublishBufferSizeInMB, brokerMemoryLimitMB).",
            since_ms=since_ms,
            evidence={"pendingMessages": producer.pending, **_who(producer)},
        )
    ]
