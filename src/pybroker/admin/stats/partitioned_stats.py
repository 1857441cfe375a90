"""JSON of `partitioned-stats`: statistics over all partitions of a topic.

As in Pulsar, members that apply to one topic only are absent, and times of single events are 0.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

from pybroker.admin.stats.topic_stats import OBJECTS_PER_SLICE, THROTTLED_EVENTS, Document, Steps
from pybroker.admin.time_text import iso_text

_TOPIC_SUMS = (
    "msgRateIn",
    "msgThroughputIn",
    "msgRateOut",
    "msgThroughputOut",
    "bytesInCounter",
    "msgInCounter",
    "systemTopicBytesInCounter",
    "bytesOutCounter",
    "msgOutCounter",
    "bytesOutInternalCounter",
    "storageSize",
    "backlogSize",
    "publishRateLimitedTimes",
    "offloadedStorageSize",
    "ongoingTxnCount",
    "abortedTxnCount",
    "committedTxnCount",
    "waitingPublishers",
    "nonContiguousDeletedMessagesRanges",
    "nonContiguousDeletedMessagesRangesSerializedSize",
    "delayedMessageIndexSizeInBytes",
)
_TOPIC_LATEST = (
    "lastOffloadLedgerId",
    "lastOffloadSuccessTimeStamp",
    "lastOffloadFailureTimeStamp",
    "lastPublishTimeStamp",
)
_COMPACTION = (
    "lastCompactionRemovedEventCount",
    "lastCompactionSucceedTimestamp",
    "lastCompactionFailedTimestamp",
    "lastCompactionDurationTimeInMills",
)
_DELIVERED_SUMS = (
    "msgRateOut",
    "msgThroughputOut",
    "bytesOutCounter",
    "msgOutCounter",
    "msgRateRedeliver",
    "messageAckRate",
    "chunkedMessageRate",
    "unackedMessages",
    "drainingHashesCount",
    "drainingHashesClearedTotal",
    "drainingHashesUnackedMessages",
)
_SUBSCRIPTION_SUMS = (
    *_DELIVERED_SUMS,
    "msgBacklog",
    "backlogSize",
    "msgBacklogNoDelayed",
    "msgDelayed",
    "msgInReplay",
    "msgRateExpired",
    "msgExpired",
    "totalMsgExpired",
    "nonContiguousDeletedMessagesRanges",
    "nonContiguousDeletedMessagesRangesSerializedSize",
    "delayedMessageIndexSizeInBytes",
    "filterProcessedMsgCount",
    "filterAcceptedMsgCount",
    "filterRejectedMsgCount",
    "filterRescheduledMsgCount",
    *THROTTLED_EVENTS,
)
_SUBSCRIPTION_ANY = (
    "blockedSubscriptionOnUnackedMsgs",
    "isReplicated",
    "replicated",
    "allowOutOfOrderDelivery",
)
_SUBSCRIPTION_TIMES = (
    "lastExpireTimestamp",
    "lastConsumedFlowTimestamp",
    "lastConsumedTimestamp",
    "lastAckedTimestamp",
    "lastMarkDeleteAdvancedTimestamp",
)
_CONSUMER_SUMS = (*_DELIVERED_SUMS, "availablePermits")
_CONSUMER_KEPT = ("keyHashRangeArrays", "readPositionWhenJoining")
_PUBLISHER_SUMS = ("msgRateIn", "msgThroughputIn", "chunkedMessageRate")


def partitioned_stats(partitions: list[Document], *, merges_publishers_by_name: bool) -> Steps:
    """Return the sums over the partitions; zeros without partitions. Yields to the caller between short steps.

    `merges_publishers_by_name`: producers with the same name on several partitions are one producer.
    """
    subscriptions: dict[str, Document] = {}
    for partition in partitions:
        for name, each in partition["subscriptions"].items():
            present = subscriptions.get(name)
            subscriptions[name] = _subscription([each] if present is None else [present, each])
            yield
    publishers = yield from _publishers(partitions, merges_publishers_by_name)
    last = partitions[-1] if partitions else {}
    document: Document = {
        **_sums(_TOPIC_SUMS, partitions),
        **{key: max((each[key] for each in partitions), default=0) for key in _TOPIC_LATEST},
        "averageMsgSize": _mean([each["averageMsgSize"] for each in partitions]),
        "msgChunkPublished": any(each["msgChunkPublished"] for each in partitions),
        "backlogQuotaLimitSize": last.get("backlogQuotaLimitSize", 0),
        "backlogQuotaLimitTime": last.get("backlogQuotaLimitTime", 0),
        "oldestBacklogMessageAgeSeconds": 0,
        "earliestMsgPublishTimeInBacklogs": _earliest(each["earliestMsgPublishTimeInBacklogs"] for each in partitions),
        "topicCreationTimeStamp": _earliest(each["topicCreationTimeStamp"] for each in partitions),
        "publishers": publishers,
        "subscriptions": subscriptions,
        "replication": {},
        "compaction": {key: max((each["compaction"][key] for each in partitions), default=0) for key in _COMPACTION},
    }
    if "msgDropRate" in last:  # non-persistent topics only
        document["msgDropRate"] = _dropped(partitions)
    for each in partitions:
        if each["oldestBacklogMessageAgeSeconds"] > document["oldestBacklogMessageAgeSeconds"]:
            document["oldestBacklogMessageAgeSeconds"] = each["oldestBacklogMessageAgeSeconds"]
            if "oldestBacklogMessageSubscriptionName" in each:
                document["oldestBacklogMessageSubscriptionName"] = each["oldestBacklogMessageSubscriptionName"]
    return document


def _sums(keys: Iterable[str], documents: list[Document]) -> Document:
    return {key: sum(each[key] for each in documents) for key in keys}


def _dropped(documents: list[Document]) -> float:
    return float(sum(each["msgDropRate"] for each in documents))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _earliest(times_ms: Iterable[int]) -> int:
    return min((each for each in times_ms if each > 0), default=0)


def _publishers(partitions: list[Document], by_name: bool) -> Generator[None, None, list[Document]]:
    by_place: dict[int, list[Document]] = {}
    named: dict[str, list[Document]] = {}
    for partition in partitions:
        place = 0
        for each in partition["publishers"]:
            if by_name or each["supportsPartialProducer"]:
                named.setdefault(each["producerName"], []).append(each)
            else:
                by_place.setdefault(place, []).append(each)
                place += 1
        yield
    merged: list[Document] = []
    for _, sames in sorted(by_place.items()):
        merged.append(_publisher(sames))
        if not len(merged) % OBJECTS_PER_SLICE:
            yield
    for name, sames in sorted(named.items()):
        merged.append(_publisher(sames) | {"producerName": name})
        if not len(merged) % OBJECTS_PER_SLICE:
            yield
    return merged


def _publisher(sames: list[Document]) -> Document:
    return {
        **_sums(_PUBLISHER_SUMS, sames),
        "averageMsgSize": _mean([each["averageMsgSize"] for each in sames]),
        "producerId": 0,
        "supportsPartialProducer": sames[0]["supportsPartialProducer"],
    }


def _subscription(sames: list[Document]) -> Document:
    last = sames[-1]
    return {
        **_sums(_SUBSCRIPTION_SUMS, sames),
        **{key: any(each[key] for each in sames) for key in _SUBSCRIPTION_ANY},
        **dict.fromkeys(_SUBSCRIPTION_TIMES, 0),
        "earliestMsgPublishTimeInBacklog": _earliest(each["earliestMsgPublishTimeInBacklog"] for each in sames),
        "type": last["type"],
        "isDurable": last["isDurable"],
        "durable": last["durable"],
        "consumersAfterMarkDeletePosition": _united("consumersAfterMarkDeletePosition", sames),
        "subscriptionProperties": _united("subscriptionProperties", sames),
        "consumers": _consumers([each["consumers"] for each in sames]),
    }


def _united(key: str, documents: list[Document]) -> dict[str, str]:
    return {name: value for each in documents for name, value in each[key].items()}


def _consumers(lists: list[list[Document]]) -> list[Document]:
    if len(lists) == 2 and len(lists[0]) == len(lists[1]):
        return [_consumer(list(pair)) for pair in zip(*lists, strict=True)]
    return [_consumer([each]) for one in lists for each in one]


def _consumer(sames: list[Document]) -> Document:
    last = sames[-1]
    document: Document = {
        **_sums(_CONSUMER_SUMS, sames),
        "consumerName": last["consumerName"],
        "avgMessagesPerEntry": 0,
        "blockedConsumerOnUnackedMsgs": any(each["blockedConsumerOnUnackedMsgs"] for each in sames),
        "lastAckedTimestamp": 0,
        "lastConsumedTimestamp": 0,
        "lastConsumedFlowTimestamp": 0,
        "firstMessagesSentTimestamp": max(each["firstMessagesSentTimestamp"] for each in sames),
        "firstConsumedFlowTimestamp": max(each["firstConsumedFlowTimestamp"] for each in sames),
        "lastAckedTime": iso_text(0),
        "lastConsumedTime": iso_text(0),
        **{key: last[key] for key in _CONSUMER_KEPT if key in last},
    }
    if "drainingHashes" in last:
        document["drainingHashes"] = [hashes for each in sames for hashes in each.get("drainingHashes", [])]
    return document
