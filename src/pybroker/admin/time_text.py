"""Times as REST shows them to people."""

from __future__ import annotations

from datetime import UTC, datetime


def iso_text(time_ms: int) -> str:
    """Milliseconds since 1970 in ISO 8601, UTC."""
    precision = "milliseconds" if time_ms % 1000 else "seconds"
    text = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec=precision)
    return text.replace("+00:00", "Z")
