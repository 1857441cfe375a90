"""Changes of topic policies as administrators saw them, and the values that may be in force after them. No IO.

The answered changes of one policy of one topic are in an order: a change that began after the answer to another one is newer.
A change without an answer, or with an error that leaves its outcome open, may take effect at any later time, or never.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from tests.simulate import tape
from tests.simulate.tape import Event

from pybroker.model.effective_policies import EffectivePolicies
from pybroker.model.policies import TopicPolicies

FIRST_VALUE = 100_000
"""The lowest value that is set: no default, and too high to affect a message."""


class Policy(NamedTuple):
    """How a policy is set by REST, and read from the two forms of policies in a broker. Its value is one number."""

    path: str
    body: Callable[[int], Any]
    """The body of the request; None: the value is a query parameter with the name of the path."""
    stored: Callable[[TopicPolicies], int | None]
    effective: Callable[[EffectivePolicies], int]


POLICIES = {
    each.path: each
    for each in (
        Policy(
            "retention",
            lambda value: {"retentionTimeInMinutes": value, "retentionSizeInMB": value},
            lambda own: None if own.retentionPolicies is None else own.retentionPolicies.retentionTimeInMinutes,
            lambda found: found.retention.retentionTimeInMinutes,
        ),
        Policy(
            "messageTTL", lambda value: None, lambda own: own.messageTTLInSeconds, lambda found: found.message_ttl_s
        ),
        Policy(
            "publishRate",
            lambda value: {"publishThrottlingRateInMsg": value, "publishThrottlingRateInByte": -1},
            lambda own: None if own.publishRate is None else own.publishRate.publishThrottlingRateInMsg,
            lambda found: found.publish_rate.publishThrottlingRateInMsg,
        ),
        Policy(
            "maxConsumers", lambda value: value, lambda own: own.maxConsumerPerTopic, lambda found: found.max_consumers
        ),
    )
}


def effective_value(policy: str, found: EffectivePolicies) -> int | None:
    """Return the value of a policy; None if it is a default."""
    value = POLICIES[policy].effective(found)
    return value if value >= FIRST_VALUE else None


def read_value(answer: Any) -> int | None:
    """Return the value in the answer to a GET; None if the policy is not set."""
    if isinstance(answer, dict):
        answer = answer.get("retentionTimeInMinutes", answer.get("publishThrottlingRateInMsg"))
    return answer if isinstance(answer, int) else None


@dataclass
class Write:
    """One change. `value` is None for a removal."""

    value: int | None
    begun_s: float
    ended_s: float = inf
    """When it was answered with success; later it does not take effect. Infinite if its outcome is open."""


class PolicyWrites:
    """The changes of all policies on a tape, by topic (in the script) and policy."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.of: dict[tuple[str, str], list[Write]] = defaultdict(list)
        begun: dict[str, tuple[tuple[str, str], Write]] = {}
        for event in events:
            facts = event.facts
            if event.what == tape.POLICY_SETTING:
                key, write = (facts["topic"], facts["policy"]), Write(facts["value"], event.at_s)
                begun[facts["token"]] = key, write
                self.of[key].append(write)
            elif event.what == tape.POLICY_SET:
                key, write = begun[facts["token"]]
                if 200 <= facts["status"] < 300:
                    write.ended_s = event.at_s
                elif 400 <= facts["status"] < 500:
                    self.of[key].remove(write)

    def possible(self, topic: str, policy: str, answered_by_s: float = inf) -> set[int | None]:
        """Return the values that may be in force when all changes are in force that were answered by then."""
        writes = self.of[topic, policy]
        answered = [write.begun_s for write in writes if write.ended_s <= answered_by_s and write.ended_s < inf]
        newest_s = max(answered, default=-inf)
        values = {write.value for write in writes if write.ended_s >= newest_s}
        return values if answered else {*values, None}
