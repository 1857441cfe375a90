"""Rules of leader election at `/loadbalance/leader`: an ephemeral value, which the first candidate creates.

Java brokers are candidates in the same election. While a Java broker is registered, a Java leader is preferred, because
only Java brokers know the load of the bundles of Java brokers. `loadBalancerLeaderBesideJavaBrokers` removes this
preference.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

LEADER = "/loadbalance/leader"


class ElectionStep(Enum):
    """The next step of a broker in the leader election."""

    NOTHING = "nothing"
    STAND = "stand"
    """Create the value."""
    RESIGN = "resign"
    """Delete the value, which this session created."""
    CLEAR = "clear"
    """Delete the value that an earlier session of this broker left, then check again."""


class Candidacy(NamedTuple):
    """The properties of this broker that matter for the election."""

    broker_id: str
    is_leader: bool
    """Whether this session created the value."""
    may_stand: bool


def encoded_leader(broker_id: str, service_url: str) -> bytes:
    return msgspec.json.encode({"brokerId": broker_id, "serviceUrl": service_url})


def leader_of(value: bytes | None) -> str | None:
    """Return the id of the leader in the stored value; None without a value, because there is no leader; "" if the
    value cannot be read, although there is a leader. Brokers before Pulsar 3.0 store only `serviceUrl`: its host and
    port are the id.
    """
    if value is None:
        return None
    try:
        data = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    if not isinstance(data, dict):
        return ""
    broker_id, url = data.get("brokerId"), data.get("serviceUrl")
    if isinstance(broker_id, str) and broker_id:
        return broker_id
    return url.rpartition("//")[2] if isinstance(url, str) else ""


def election_step(leader_id: str | None, own: Candidacy) -> ElectionStep:
    """Return the next step of this broker in the leader election. `leader_id`: the result of `leader_of`."""
    if leader_id is None:
        return ElectionStep.STAND if own.may_stand else ElectionStep.NOTHING
    if leader_id != own.broker_id:
        return ElectionStep.NOTHING
    if not own.is_leader:
        return ElectionStep.CLEAR
    return ElectionStep.NOTHING if own.may_stand else ElectionStep.RESIGN
