"""Parsing of times and sizes in options and settings."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_SIZE = re.compile(r"([0-9]{1,15})\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def time_ms(text: str) -> int:
    """Parse a time and return milliseconds since 1970: a number of milliseconds, or a text such as
    2026-11-23T04:00:00Z, which is UTC if it has no time zone. Raises ValueError.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def size_bytes(text: str) -> int:
    """Parse a size and return bytes: a number of bytes, or a number with a unit, such as `64m`, `64MB` or `64 MiB`.
    All units are powers of 1024. Raises ValueError.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:60]!r} is not a size: use a number of bytes, such as 64m")
    return int(match.group(1)) * _UNITS[match.group(2).lower()]
