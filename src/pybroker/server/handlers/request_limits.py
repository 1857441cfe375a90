"""Size limits of request contents, checked before anything is copied.

Counts are checked first, because they are known without reading the elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Protocol

from pybroker.errors import BrokerError, NotAllowedError
from pybroker.model.names import MAX_TOPIC_LENGTH


class Pair(Protocol):
    """A property."""

    key: str
    value: str


class Pairs(Sized, Iterable[Pair], Protocol):
    """Properties as a request has them."""


def require_small_properties(pairs: Pairs, limit: int, limit_key: str, error: type[BrokerError], owner: str) -> None:
    """Refuse more than `limit` bytes in keys and values, or more pairs than that, with `error`."""
    if len(pairs) > limit:
        raise error(f"{len(pairs)} {owner} properties are over the limit of {limit} bytes ({limit_key})")
    size_bytes = sum(len(pair.key) + len(pair.value) for pair in pairs)
    if size_bytes > limit:
        raise error(f"{owner} properties of {size_bytes} bytes are over the limit of {limit} ({limit_key})")


def require_short_name(name: str, what: str) -> None:
    """Refuse a name that is too long for a path. Raises NotAllowedError."""
    if len(name) > MAX_TOPIC_LENGTH:
        raise NotAllowedError(f"the {what} has {len(name)} characters, {MAX_TOPIC_LENGTH} are the most")
