"""Matching of topic names against a client's pattern, and the hash of a list of topic names.

A client detects by the hash that the list has changed. Clients write patterns for Java. The broker evaluates them with
RE2, in linear time and limited memory. If RE2 does not support a pattern (lookaround, backreferences), the broker sends
the whole list, and the client filters it.

A pattern must match the whole name without its domain. Partitions are matched by the name of their partitioned topic.
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
MAX_PATTERN_MEMORY_BYTES = 1 << 20  # of one compiled pattern and its caches
MAX_SHARED_PATTERNS = 1000
_PARTITION = re.compile(r"-partition-(?:0|[1-9][0-9]*)\Z")
# RE2's errors for texts that are invalid in every dialect.
_WRONG_EVERYWHERE = ("missing )", "missing ]", "unexpected )", "trailing \\", "no argument for repetition operator")


class InvalidPattern(ValueError):
    """The regular expression is invalid, or its topic domain does not exist."""


class UnsupportedPattern(ValueError):
    """The expression may be valid, but RE2 cannot evaluate it in limited memory."""


class TopicsPattern:
    """A compiled pattern. Patterns with equal text share one object."""

    def __init__(self, expression: re2._Regexp[str]) -> None:
        self._expression = expression

    @staticmethod
    def parse(text: str) -> TopicsPattern:
        return _compiled(_without_domain(text))

    def matches(self, topic: str) -> bool:
        """Return whether the pattern matches a topic. `topic` is the full name with its domain, as text, because parsing
        long lists of names is slow.
        """
        name = _PARTITION.sub("", topic.partition(SCHEME_END)[2])
        return self._expression.fullmatch(name) is not None


def pattern_in_namespace(text: str) -> tuple[NamespaceName, str]:
    """Return the namespace of a topics pattern, such as `persistent://public/default/orders-.*`, and the pattern without
    the domain. Tenant and namespace are literal; the returned pattern contains them escaped.

    Raises InvalidTopicName if tenant or namespace is missing or invalid, InvalidPattern if the rest is not a valid
    regular expression, UnsupportedPattern if RE2 cannot evaluate it.
    """
    parts = text.removeprefix("persistent://").split("/", 2)
    if len(parts) != 3:
        raise InvalidTopicName(
            "the topics pattern contains no tenant or no namespace: use the form tenant/namespace/pattern"
        )
    namespace = NamespaceName.parse(f"{parts[0]}/{parts[1]}")
    pattern = re.escape(f"{namespace}/") + f"(?:{parts[2]})"
    TopicsPattern.parse(pattern)
    return namespace, pattern


def topics_hash(topics: Sequence[str]) -> str:
    """Return the hash by which a client recognizes a known list of topics: the CRC32C of the names, which must be
    sorted, joined by commas, as hexadecimal digits in little-endian order.
    """
    if not topics:
        return NO_TOPICS_HASH
    return crc32c(",".join(topics).encode()).to_bytes(4, "little").hex()


def _without_domain(pattern: str) -> str:
    before, separator, rest = pattern.partition(SCHEME_END)
    if not separator:
        return pattern
    # The longer one first, because it ends with the other. A mark such as ^ or (?i) may precede it.
    for domain in sorted(DOMAINS, key=len, reverse=True):
        if before.endswith(domain):
            return before.removesuffix(domain) + rest
    raise InvalidPattern(
        f"the topics pattern {pattern!r} contains no topic domain: begin it with persistent:// or non-persistent://"
    )


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
