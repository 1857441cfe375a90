"""One-line summaries of stuck topics, for lists of many topics."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, NamedTuple, cast

from pybroker.broker.explain.subscriptions import explain_subscription
from pybroker.broker.explain.topics import explain_topic, throttled_by_other_topics
from pybroker.model.findings import Finding, is_waiting, ordered

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.topic.backlog_quota import Exceeded
    from pybroker.broker.topic.topic import Topic
    from pybroker.broker.topic.topic_base import TopicBase


class StuckTopic(NamedTuple):
    """A stuck topic with its most important finding."""

    topic: str
    is_blocked: bool
    """Whether the topic itself is stuck: its producers or its readers are blocked."""
    subscriptions: int
    """Number of stuck subscriptions."""
    subscription: str | None
    """The stuck subscription with the largest backlog, which the finding concerns. None if the topic itself is stuck."""
    backlog_entries: int
    finding: Finding


def stuck_topic(topic: TopicBase, quota: Exceeded | None) -> Generator[None, None, StuckTopic | None]:
    """Return the summary of a loaded topic; None if the topic is not stuck. `quota`: the topic's exceeded backlog
    quota, or None.
    """
    of_topic = explain_topic(topic, quota)
    if topic.producers:
        of_topic += yield from throttled_by_other_topics(topic)
    of_topic = [each for each in ordered(of_topic) if each.waits]
    stuck = 0
    worst: tuple[int, str, Finding] | None = None
    stored = cast("Topic", topic) if topic.name.is_persistent else None
    for name, subscription in () if stored is None else list(stored.subscriptions.items()):
        if subscription.is_closed or _is_at_rest(subscription):
            continue
        findings = yield from explain_subscription(cast("Topic", stored), subscription)
        if is_waiting(findings):
            stuck += 1
            if worst is None or subscription.backlog_entries > worst[0]:
                worst = subscription.backlog_entries, name, findings[0]
        yield
    if of_topic:
        backlog_entries = 0 if worst is None else worst[0]
        return StuckTopic(str(topic.name), True, stuck, None, backlog_entries, of_topic[0])
    if worst is None:
        return None
    backlog_entries, name, finding = worst
    return StuckTopic(str(topic.name), False, stuck, name, backlog_entries, finding)


def _is_at_rest(subscription: Subscription) -> bool:
    """Return whether all messages are acknowledged, so that none can wait. Always False with a compacted view, which
    may deliver acknowledged messages.
    """
    return not subscription.backlog_entries and subscription.reads.compacted is None
