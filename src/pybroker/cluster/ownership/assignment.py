"""The next step of a lookup whose bundle has no owner, as in Pulsar's ModularLoadManager. Without IO."""

from __future__ import annotations

from enum import Enum


class NextStep(Enum):
    """What the broker does for the lookup."""

    ACQUIRE = "acquire"
    """Another broker decided for this one, or the client names it by an authoritative request."""
    ASK_LEADER = "ask leader"
    """Redirect the client to the leader, not authoritative."""
    CHOOSE = "choose"
    """Choose the broker here, and redirect the client to it, authoritative; or acquire."""


def next_step(*, is_authoritative: bool, is_leader: bool, knows_leader: bool) -> NextStep:
    """Without a known leader each broker decides alone, as in Pulsar: creation of the document decides between two."""
    if is_authoritative:
        return NextStep.ACQUIRE
    return NextStep.CHOOSE if is_leader or not knows_leader else NextStep.ASK_LEADER
