"""Texts of findings: times, numbers and shortened lists."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING

from pybroker.model.findings import Finding

if TYPE_CHECKING:
    from pybroker.runtime.clock import Clock

Steps = Generator[None, None, list[Finding]]
"""Generator that returns findings. The caller yields to the event loop at each pause."""

LISTED = 10
"""Maximum length of a list in a finding, which also gives the number of omitted elements."""
WEBSOCKET_CLIENT = "webSocketClient"
"""Property of a producer or consumer of a WebSocket session: the address of the session's client."""
MAX_ADDRESS_LENGTH = 60
PIECE = 200
"""Number of objects that are processed between two pauses."""


def wall_ms(monotonic_ms: float, clock: Clock) -> int:
    return round(clock.wall_ms() - (clock.monotonic_ms() - monotonic_ms))


def for_long(since_ms: int | None, clock: Clock) -> str:
    """Return the time since `since_ms` as text with a leading space, such as ` for 3.2 s`; empty for None."""
    return "" if since_ms is None else f" for {duration(max(0, clock.wall_ms() - since_ms))}"


def duration(milliseconds: float) -> str:
    """Format a duration with one unit: `0.4 s`, `12 s`, `3 min`, `5 h`, `2 days`."""
    seconds = milliseconds / 1000
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} days"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Format a number with its noun: `1 message`, `2,000 messages`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def names(of: Sequence[str]) -> str:
    """Return a text with at most three of the names, and with the number of omitted names."""
    listed = ", ".join(of[:3])
    return listed if len(of) <= 3 else f"{listed} and {len(of) - 3:,} more"


NAME_LENGTH = 60
"""Longer keys are truncated in sentences. The evidence contains up to `MAX_KEY_BYTES`."""


def cut(text: str) -> str:
    return text if len(text) <= NAME_LENGTH else text[: NAME_LENGTH - 1] + "…"


def client_address(address: str, properties: Mapping[str, str]) -> str:
    """Return the address of a producer's or consumer's client. `address`: address of its connection. For a WebSocket
    session, the broker itself opened this connection, so the result also contains the address of the WebSocket client.
    """
    client = properties.get(WEBSOCKET_CLIENT)
    return address if client is None else f"{address} for WebSocket {client[:MAX_ADDRESS_LENGTH]}"
