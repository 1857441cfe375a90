"""Parsers of ids, times and quantities on the command line. Pure.

They raise `argparse.ArgumentTypeError` with the expected format, so each can be the `type=` of an option.
"""

from __future__ import annotations

import base64
import binascii
import re
from argparse import ArgumentTypeError
from dataclasses import dataclass
from typing import NamedTuple

from pybroker.errors import InvalidTopicName
from pybroker.model.names import NamespaceName, TopicName
from pybroker.reading import quantities

MAX_NUMBER = (1 << 63) - 1
"""Maximum of an id or a time in milliseconds in the protocol."""
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0, "y": 365 * 86_400.0}
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(ms|s|m|h|d|w|y)?", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)


class GivenId(NamedTuple):
    """A message id. Omitted parts are -1."""

    ledger_id: int
    entry_id: int
    batch_index: int = -1
    partition: int = -1

    def __str__(self) -> str:
        """Return the format of REST: `ledger:entry`, with the batch index if there is one."""
        text = f"{self.ledger_id}:{self.entry_id}"
        return text if self.batch_index < 0 else f"{text}:{self.batch_index}"


@dataclass(frozen=True, slots=True)
class Start:
    """A start position: a `word` (earliest or latest), or exactly one of the other fields."""

    word: str = ""
    id: GivenId | None = None
    time_ms: int | None = None


def message_id(text: str) -> GivenId:
    """Parse `LEDGER:ENTRY`, `LEDGER:ENTRY:INDEX` with a batch index, or `LEDGER:ENTRY:PARTITION:INDEX`, in which -1
    means no partition or no index.
    """
    parts = text.strip().split(":")
    if len(parts) in {2, 3, 4}:
        lowest = [0, 0, 0] if len(parts) == 3 else [0, 0, -1, -1]
        numbers = [_number(part, least) for part, least in zip(parts, lowest, strict=False)]
        if None not in numbers:
            ledger_id, entry_id, *rest = (number for number in numbers if number is not None)
            if not rest:
                return GivenId(ledger_id, entry_id)
            if len(rest) == 1:
                return GivenId(ledger_id, entry_id, rest[0])
            return GivenId(ledger_id, entry_id, rest[1], rest[0])
    raise ArgumentTypeError(f"{_shown(text)} is not a message id: use the form LEDGER:ENTRY or LEDGER:ENTRY:INDEX")


def _number(text: str, least: int) -> int | None:
    if text == "-1" and least == -1:
        return -1
    if _NUMBER.fullmatch(text) is None or int(text) > MAX_NUMBER:
        return None
    return int(text)


def topic(text: str) -> TopicName:
    """Parse `t`, `tenant/namespace/t` or `domain://tenant/namespace/t`."""
    try:
        return TopicName.parse(text)
    except InvalidTopicName as error:
        raise ArgumentTypeError(str(error)) from None


def namespace_or_tenant(text: str) -> str | NamespaceName:
    """Parse `tenant/namespace` or `tenant`."""
    try:
        return NamespaceName.parse(text) if "/" in text else NamespaceName.parse(f"{text}/any").tenant
    except InvalidTopicName as error:
        raise ArgumentTypeError(str(error)) from None


def seconds(text: str) -> float:
    """Parse a duration into seconds: `500ms`, `30s`, `10m`, `2h`, `7d`, `1y`, or a number of seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ArgumentTypeError(f"{_shown(text)} is not a duration: use a form such as 500ms, 30s, 10m, 2h or 7d")
    value = float(match.group(1)) * _UNITS_S[match.group(2) or "s"]
    if value * 1000 > MAX_NUMBER:
        raise ArgumentTypeError(f"{_shown(text)} is too long for a duration: the maximum is 292 million years")
    return value


def time_ms(text: str) -> int:
    """Parse a time into milliseconds since 1970: `2026-11-23T04:00:00Z` (UTC without a zone), or a number of
    milliseconds.
    """
    try:
        moment_ms = quantities.time_ms(text[:60])
        if 0 <= moment_ms <= MAX_NUMBER:
            return moment_ms
        raise ValueError(text)
    except (ValueError, OverflowError):
        raise ArgumentTypeError(
            f"{_shown(text)} is not a time: use a form such as 2026-11-23T04:00:00Z, or milliseconds since 1970"
        ) from None


def start(text: str) -> Start:
    """Parse a start position: `earliest`, `latest`, a message id, or a time."""
    if text in {"earliest", "latest"}:
        return Start(text)
    try:
        return Start(id=message_id(text))
    except ArgumentTypeError:
        pass
    try:
        return Start(time_ms=time_ms(text))
    except ArgumentTypeError:
        raise ArgumentTypeError(
            f"{_shown(text)} is not a position: use earliest, latest, LEDGER:ENTRY, or a time such as "
            "2026-11-23T04:00:00Z"
        ) from None


def count(text: str) -> int:
    if _NUMBER.fullmatch(text) is None or not 0 < int(text) <= MAX_NUMBER:
        raise ArgumentTypeError(f"{_shown(text)} is not a number of 1 or more")
    return int(text)


def number(text: str) -> int:
    if _NUMBER.fullmatch(text) is None or int(text) > MAX_NUMBER:
        raise ArgumentTypeError(f"{_shown(text)} is not a number of 0 or more")
    return int(text)


def pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ArgumentTypeError(f"{_shown(text)} does not have the form NAME=VALUE")
    return name, value


def base64_bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ArgumentTypeError("the value is not Base64") from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")


def size_of(text: str) -> int:
    """Parse a size into bytes, at least 1: `1000`, `64K` (65,536 bytes), `50M`, `2G`."""
    try:
        size_bytes = quantities.size_bytes(text[:60])
    except ValueError:
        raise ArgumentTypeError(
            f"{_shown(text)} is not a size: use a number of bytes, or a form such as 64K, 50M or 2G"
        ) from None
    if not size_bytes:
        raise ArgumentTypeError(f"{_shown(text)} is not a size: the minimum is 1 byte")
    return size_bytes
