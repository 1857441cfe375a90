"""The session of this process with a shared metadata store: its states and events, and a report for operators."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class SessionEvent(Enum):
    """An event of this process's session with a shared store."""

    SUSPENDED = "suspended"
    """The store is unreachable. Session values remain for now."""
    RECONNECTED = "reconnected"
    """The store is reachable again, in the same session."""
    LOST = "lost"
    """The session is over: its values are deleted, and other brokers may create values at the same paths."""
    RENEWED = "renewed"
    """A new session exists, without values."""


class SessionState(Enum):
    """The state of the session; CONNECTED for an embedded store."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


class SessionReport(NamedTuple):
    """The state of the session with a shared store, for readiness, metrics and `explain`."""

    url: str
    state: SessionState
    state_age_ms: float
    """How long the session has been in this state."""
    session_id: int
    timeout_ms: int
    suspensions: int
    losses: int
    outcomes_read_back: int
    """Number of changes for which the response was lost, so that their outcome was read from the store."""
    last_failure: str
