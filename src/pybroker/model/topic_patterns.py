"""Which topics of a namespace a client's pattern means, and the hash by which it knows a list of names.

Patterns come from clients, who write them for Java. They run on RE2, whose time is linear in the length of a name whatever the
pattern says, and whose memory is bounded here. What RE2 does not know (looking around, references back) is not answered wrongly: it
is left to the client, which filters a whole list itself.

A pattern means the whole name without its domain, and the partitions of a partitioned topic are matched by that topic's name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import re2
from crc32c import crc32c

from pybroker.errors import InvalidTopicName
from pybroker.model.names import DOMAINS, NamespaceName

SCHEME_END = "://"
NO_TOPICS_HASH = "00000000"
MAX_PATTERN_MEMORY_BYTES = 1 << 20  # of one compiled pattern and all that it remembers
MAX_SHARED_PATTERNS = 1000
_PARTITION = re.compile(r"-partition-(?:0|[1-9][0-9]*)\Z")
# What RE2 says of texts that are a pattern in no dialect.
_WRONG_EVERYWHERE = ("missing )", "missing ]", "unexpected )", "trailing \\", "no argument for repetition operator")


class InvalidPattern(ValueError):
    """No regular expression, or for a domain that does not exist."""


class UnsupportedPattern(ValueError):
    """Perhaps a fine expression, but none that can be evaluated in bounded time here."""


class TopicsPattern:
    """A compiled pattern; those of equal text are one object."""

    def __init__(self, expression: re2._Regexp[str]) -> None:
        self._expression = expression

    @staticmethod
    def parse(text: str) -> TopicsPattern:
        """Raises InvalidPattern or UnsupportedPattern."""
        return _compiled(_without_domain(text))

    def matches(self, topic: str) -> bool:
        """Whether the full name `topic` is meant. Works on text: lists are long, and parsed names worth keeping are few."""
        name = _PARTITION.sub("", topic.partition(SCHEME_END)[2])
        return self._expression.fullmatch(name) is not None


def pattern_in_namespace(text: str) -> tuple[NamespaceName, str]:
    """The namespace that `text` names, and the pattern of what it means there: tenant and namespace are as they are, only the
    rest is an expression, as in `persistent://public/default/orders-.*`.

    Raises InvalidTopicName for the first two, InvalidPattern or UnsupportedPattern for the rest.
    """
    parts = text.removeprefix("persistent://").split("/", 2)
    if len(parts) != 3:
        raise InvalidTopicName("tenant or namespace is missing")
    namespace = NamespaceName.parse(f"{parts[0]}/{parts[1]}")
    pattern = re.escape(f"{namespace}/") + f"(?:{parts[2]})"
    TopicsPattern.parse(pattern)
    return namespace, pattern


def topics_hash(topics: Sequence[str]) -> str:
    """CRC32C of the names joined by commas, its bytes as hex in little-endian order. `topics` are sorted."""
    if not topics:
        return NO_TOPICS_HASH
    return crc32c(",".join(topics).encode()).to_bytes(4, "little").hex()


def _without_domain(pattern: str) -> str:
    before, separator, rest = pattern.partition(SCHEME_END)
    if not separator:
        return pattern
    # The longer one first: it ends in the other. What stands before may be a mark such as ^ or (?i).
    for domain in sorted(DOMAINS, key=len, reverse=True):
        if before.endswith(domain):
            return before.removesuffix(domain) + rest
    raise InvalidPattern(f"topics pattern {pattern!r} names no topic domain: use persistent or non-persistent")


@lru_cache(maxsize=MAX_SHARED_PATTERNS)
def _compiled(text: str) -> TopicsPattern:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_PATTERN_MEMORY_BYTES
    options.never_capture = True
    try:
        return TopicsPattern(re2.compile(text, options))
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        if reason.startswith(_WRONG_EVERYWHERE):
            raise InvalidPattern(f"invalid topics pattern: {reason}") from error
        raise UnsupportedPattern(f"the topics pattern cannot be evaluated by the broker: {reason}") from error
