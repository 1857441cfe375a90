"""Parsing of Spark options, which have lower-case keys and text values.

The option names are those of the Scala connector, which passes options such as `pulsar.client.*` to the Java client.
Other options of the Java client are accepted without effect. An unknown option is an error, because a query with an
ignored limit or credential is worse than a query that does not start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from pybroker.reading.quantities import size_bytes

OF_OTHER_SOURCES = {
    "adminurl": "admin.url",
    "endingoffsetsbytimestamp": "endingTime",
    "endingtimestamp": "endingTime",
    "groupidprefix": "subscriptionPrefix",
    "kafka.bootstrap.servers": "service.url",
    "kafka.group.id": "predefinedSubscription",
    "maxentriespertrigger": "maxMessagesPerTrigger",
    "maxoffsetspertrigger": "maxMessagesPerTrigger",
    "maxrowspertrigger": "maxMessagesPerTrigger",
    "serviceurl": "service.url",
    "startingoffsetsbytimestamp": "startingTime",
    "startingtimestamp": "startingTime",
    "subscribe": "topics",
    "subscribepattern": "topicsPattern",
    "subscriptionname": "predefinedSubscription",
}
"""Options of other data sources, in lower case, with the equivalent option of `pulsar`."""
NO_TABLES = (
    "CREATE TABLE ... USING is not possible: Spark does not pass the options of a table in its catalog to data sources in Python. "
    "Use CREATE TEMPORARY VIEW name USING pulsar OPTIONS (`service.url` '...', topic '...'), or spark.read"
)
"""Spark adds the property `provider` to the options when it creates such a table. It passes no options when it reads
the table."""
MAX_SHOWN_CHARACTERS = 60
"""Length of a wrong value in an error."""


class InvalidOptions(ValueError):
    """Invalid options. The text contains the correction, but no secret."""


class OptionValues:
    """The options of one read or write, by name."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str], what: str) -> None:
        """`known` are the permitted names, and `what` is the operation for error texts. Raises InvalidOptions for an
        unknown option, with the most similar known name.
        """
        canonical = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        if "provider" in options:
            raise InvalidOptions(NO_TABLES)
        for key, value in options.items():
            name = canonical.get(key.lower())
            if name is None:
                raise InvalidOptions(_unknown(key, canonical, what))
            self._values[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        return self._values.get(name, "").strip() or None

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in {"true", "false"}:
            raise self.wrong(name, "true or false")
        return text.lower() == "true"

    def number(self, name: str, default: int, minimum: int = 0) -> int:
        text = self.text(name)
        if text is None:
            return default
        if not text.isdecimal() or len(text) > 18 or int(text) < minimum:
            raise self.wrong(name, f"an integer of at least {minimum}")
        return int(text)

    def size(self, name: str, default: int, minimum: int = 0) -> int:
        text = self.text(name)
        if text is None:
            return default
        try:
            found = size_bytes(text)
        except ValueError:
            found = -1
        if found < minimum:
            raise self.wrong(name, f"a number of bytes of at least {minimum}, with or without a unit, such as 64m")
        return found

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        text = self.text(name)
        if text is None:
            return default
        for choice in choices:
            if text.lower() == choice.lower():
                return choice
        raise self.wrong(name, "one of " + ", ".join(choices))

    def wrong(self, name: str, expected: str) -> InvalidOptions:
        """Return the error for a value that is not as `expected`. The error shows the value: do not use for secrets."""
        value = self._values.get(name, "")
        shown = value if len(value) <= MAX_SHOWN_CHARACTERS else value[:MAX_SHOWN_CHARACTERS] + "..."
        return InvalidOptions(f"option {name} is {shown!r}; expected {expected}")


def _unknown(key: str, canonical: Mapping[str, str], what: str) -> str:
    if key.lower() == "path":
        return "load() and save() accept no path: use option topic, topics or topicsPattern"
    same = OF_OTHER_SOURCES.get(key.lower())
    near = get_close_matches(key.lower(), canonical, n=1, cutoff=0.6)
    if same is not None and same.lower() in canonical:
        hint = f"use {same} instead, which has the same meaning"
    else:
        hint = f"did you mean {canonical[near[0]]}?" if near else "docs/how-to/spark.md lists them all"
    return f"{what} has no option {key!r}: {hint}"
