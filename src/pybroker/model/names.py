"""Names of tenants, namespaces and topics: parsing, validation, partitions.

The canonical text of a topic is `domain://tenant/namespace/local`; the short forms that clients may use are expanded
only here. Control characters are invalid, because they could break a path in the metadata store or a log line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import quote

from pybroker.errors import InvalidTopicName

PERSISTENT = "persistent"
NON_PERSISTENT = "non-persistent"
DOMAINS = (PERSISTENT, NON_PERSISTENT)
PUBLIC_TENANT = "public"
DEFAULT_NAMESPACE = "default"
MAX_NAME_LENGTH = 1024
MAX_TOPIC_LENGTH = 8192
"""Length after the namespace: the maximum that fits into the first line of an HTTP request."""
MAX_PARTITION_INDEX = (1 << 31) - 1
"""The maximum of the protocol's int32."""
_MAX_PARTITION_DIGITS = len(str(MAX_PARTITION_INDEX))
MAX_SHOWN_LENGTH = 100
"""An error quotes this much of an invalid name, so that the response is not longer than the request."""

_ENTITY = re.compile(r"[-=:.\w]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PARTITION_SUFFIX = "-partition-"


def is_valid_entity(name: str) -> bool:
    """Return whether `name` is valid for a tenant, namespace or cluster: letters, digits and `-=:._`."""
    return 0 < len(name) <= MAX_NAME_LENGTH and _ENTITY.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class NamespaceName:
    """The name of a namespace, `tenant/namespace`."""

    tenant: str
    local_name: str

    @staticmethod
    def parse(text: str) -> NamespaceName:
        tenant, slash, local_name = text.partition("/")
        if not slash or not is_valid_entity(tenant) or not is_valid_entity(local_name):
            raise InvalidTopicName(f"{_shown(text)} is not a namespace name: use the form tenant/namespace")
        return NamespaceName(tenant, local_name)

    def __str__(self) -> str:
        return f"{self.tenant}/{self.local_name}"


@dataclass(frozen=True, slots=True)
class TopicName:
    """The name of a topic. `str()` returns the canonical text."""

    domain: str
    namespace: NamespaceName
    local_name: str
    partition_index: int = field(init=False, compare=False, repr=False)
    """-1 if this is not the name of a partition."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "partition_index", _partition_index(self.local_name))

    @staticmethod
    def parse(text: str) -> TopicName:
        """Parse `t`, `tenant/ns/t` or `domain://tenant/ns/t`. Raises InvalidTopicName."""
        return _parse_topic(text)

    @property
    def tenant(self) -> str:
        return self.namespace.tenant

    @property
    def is_persistent(self) -> bool:
        return self.domain == PERSISTENT

    @property
    def partitioned_name(self) -> TopicName:
        """Return the name of the partitioned topic of a partition; the name itself if the topic is not a partition."""
        if self.partition_index < 0:
            return self
        return TopicName(self.domain, self.namespace, self.local_name.rpartition(_PARTITION_SUFFIX)[0])

    def partition(self, index: int) -> TopicName:
        return TopicName(self.domain, self.namespace, f"{self.local_name}{_PARTITION_SUFFIX}{index}")

    @property
    def storage_path(self) -> str:
        """Return the name as a path of the metadata store, `tenant/ns/domain/encoded-name`, without slashes in its
        parts.
        """
        return f"{self.namespace}/{self.domain}/{quote(self.local_name, safe='')}"

    def __str__(self) -> str:
        return f"{self.domain}://{self.namespace}/{self.local_name}"


def _partition_index(local_name: str) -> int:
    """Return the number after the last `-partition-`, without leading zeros and up to `MAX_PARTITION_INDEX`; else -1."""
    base, _, digits = local_name.rpartition(_PARTITION_SUFFIX)
    if not base or not (digits.isascii() and digits.isdecimal()) or len(digits) > _MAX_PARTITION_DIGITS:
        return -1
    index = int(digits)
    return index if index <= MAX_PARTITION_INDEX and (digits[0] != "0" or digits == "0") else -1


def _shown(text: str) -> str:
    return repr(text) if len(text) <= MAX_SHOWN_LENGTH else f"{text[:MAX_SHOWN_LENGTH]!r}... ({len(text)} characters)"


@lru_cache(maxsize=4096)
def _parse_topic(text: str) -> TopicName:
    if len(text) > MAX_TOPIC_LENGTH + 3 * MAX_NAME_LENGTH:  # checked before the name is split
        raise InvalidTopicName(
            f"invalid topic name {_shown(text)}: the name has {len(text)} characters, which is too long"
        )
    domain, separator, rest = text.partition("://")
    if not separator:
        parts = text.split("/")
        if len(parts) == 1:
            parts = [PUBLIC_TENANT, DEFAULT_NAMESPACE, text]
        elif len(parts) != 3:
            raise InvalidTopicName(
                f"invalid short topic name {_shown(text)}: use a local name, or tenant/namespace/name"
            )
        domain = PERSISTENT
    else:
        # Four parts formerly meant tenant, cluster, namespace and name. They are refused, so that such a name never
        # means another topic.
        parts = rest.split("/")
    if domain not in DOMAINS:
        raise InvalidTopicName(
            f"invalid topic domain {_shown(domain)} in {_shown(text)}: use persistent or non-persistent"
        )
    if len(parts) != 3 or not all(parts):
        raise InvalidTopicName(
            f"invalid topic name {_shown(text)}: use domain://tenant/namespace/name, without further slashes"
        )
    tenant, namespace, local_name = parts
    if not is_valid_entity(tenant) or not is_valid_entity(namespace):
        raise InvalidTopicName(
            f"invalid tenant or namespace in topic name {_shown(text)}: use letters, digits and -=:._"
        )
    if len(local_name) > MAX_TOPIC_LENGTH or _CONTROL.search(local_name) or local_name != local_name.strip():
        raise InvalidTopicName(
            f"invalid topic name {_shown(text)}: the name is too long, begins or ends with white space, or "
            "contains control characters"
        )
    return TopicName(domain, NamespaceName(tenant, namespace), local_name)
