"""Size limits of lists and texts in requests, checked before they are copied."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Protocol

from pybroker.errors import BrokerError, NotAllowedError
from pybroker.model.names import MAX_TOPIC_LENGTH


class Pair(Protocol):
    """One key-value property."""

    key: str
    value: str


class Pairs(Sized, Iterable[Pair], Protocol):
    """Protobuf's repeated properties."""


def require_small_properties(pairs: Pairs, limit: int, limit_key: str, error: type[BrokerError], owner: str) -> None:
    """Raise `error` if the keys and values of a request's properties exceed `limit` bytes, or if there are more than
    `limit` pairs. For the text of the error: `limit_key`, the configuration key of the limit, and `owner`, the object
    that has the properties, such as "producer".
    """
    if len(pairs) > limit:
        raise error(
            f"the request has {len(pairs)} {owner} properties, more than fit into the {limit} bytes of {limit_key}"
        )
    size_bytes = sum(len(pair.key) + len(pair.value) for pair in pairs)
    if size_bytes > limit:
        raise error(f"the {owner} properties have {size_bytes} bytes, which exceeds {limit_key}={limit}")


def require_short_name(name: str, kind: str) -> None:
    """Raise NotAllowedError if the name has more than MAX_TOPIC_LENGTH characters. `kind`: kind of name, for the text."""
    if len(name) > MAX_TOPIC_LENGTH:
        raise NotAllowedError(f"the {kind} has {len(name)} characters; the maximum is {MAX_TOPIC_LENGTH}")
