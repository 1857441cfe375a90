"""The next step of a lookup whose bundle has no owner, as in Pulsar's ModularLoadManager. Without IO."""

from __future__ import annotations

from enum import Enum


class NextStep(Enum):
    """The next step of a lookup: acquire the bundle, ask the leader, or choose a broker."""

    ACQUIRE = "acquire"
    """Acquire the bundle: another broker decided so, which the client's authoritative request shows."""
    ASK_LEADER = "ask leader"
    """Redirect the client to the leader, not authoritative."""
    CHOOSE = "choose"
    """Choose a broker here.

    Redirect the client to it with an authoritative response; if it is this broker, acquire the bundle.
    """


def next_step(*, is_authoritative: bool, is_leader: bool, knows_leader: bool) -> NextStep:
    """Return the next step of a lookup whose bundle has no owner. `is_authoritative`: another broker has decided that
    this broker acquires the bundle. `knows_leader`: the cluster has a leader other than this broker.

    Without a known leader, each broker chooses an owner itself, as in Pulsar: the store accepts only the first
    ownership document.
    """
    if is_authoritative:
        return NextStep.ACQUIRE
    return NextStep.CHOOSE if is_leader or not knows_leader else NextStep.ASK_LEADER
