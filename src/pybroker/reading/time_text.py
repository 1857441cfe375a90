"""Moments as people write them on a command line or into a file of settings."""

from __future__ import annotations

from datetime import UTC, datetime


def time_ms(text: str) -> int:
    """Milliseconds since 1970, given as such or as 2026-11-23T04:00:00Z; without a zone it is UTC. Raises ValueError."""
    if text.isascii() and text.isdigit():
        return int(text)
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
