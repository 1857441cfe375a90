"""Which commands a simulation has seen, and which of them at the same time.

Two overlap when one is sent while the other has no answer yet. What has no answer (FLOW, an ACK without request id) lasts for a
moment and overlaps with what is open in that moment.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable
from itertools import combinations_with_replacement

from pybroker.wire import pulsar_api_pb2 as pb

_FIELDS = {field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields}
_SEND, _RECEIPT, _ERROR = pb.BaseCommand.SEND, pb.BaseCommand.SEND_RECEIPT, pb.BaseCommand.SEND_ERROR
_TOPIC_PATH = re.compile(r"^/admin/v[23]/(?:(?:non-)?persistent|schemas)/[^/]+/[^/]+/[^/]+(?:/(.*))?$")
_NUMBER = re.compile(r"(?<=/)\d+|(?<=/)\d+:\d+")

Pair = tuple[str, str]


def inner(command: pb.BaseCommand) -> object:
    """The command's own message, which stands in the field whose number is its type."""
    return getattr(command, _FIELDS[command.type])


def http_name(method: str, path: str) -> str:
    """A call without the names in it."""
    found = _TOPIC_PATH.match(path)
    rest = (found[1] or "topic") if found else path.removeprefix("/admin/v2/").removeprefix("/admin/v3/")
    rest = re.sub(r"(subscription|ledger|entry|position)/[^/]+", r"\1/*", rest)
    rest = re.sub(r"^(namespaces|persistent|non-persistent|tenants)/[^/]+(/[^/]+)?", r"\1", rest)
    return f"{method} {_NUMBER.sub('*', rest)}"


class Coverage:
    """Of one simulation, or of many that were added up."""

    def __init__(self) -> None:
        self.commands: Counter[str] = Counter()
        self.pairs: Counter[Pair] = Counter()
        self._open: dict[Hashable, dict[Hashable, str]] = {}  # by who asks: names by what the answer will say
        self._names: Counter[str] = Counter()  # of these

    def sent(self, who: Hashable, command: pb.BaseCommand) -> None:
        """A client says something."""
        name = pb.BaseCommand.Type.Name(command.type)
        said = inner(command)
        if command.type == _SEND:
            self.begins(who, (_SEND, command.send.producer_id, command.send.sequence_id), name)
        elif (request_id := getattr(said, "request_id", None)) is not None and (
            command.type != pb.BaseCommand.ACK or command.ack.HasField("request_id")
        ):
            self.begins(who, request_id, name)
        else:
            self._count(name)

    def received(self, who: Hashable, command: pb.BaseCommand) -> None:
        """The broker says something."""
        if command.type in (_RECEIPT, _ERROR):
            said = command.send_receipt if command.type == _RECEIPT else command.send_error
            self.ends(who, (_SEND, said.producer_id, said.sequence_id))
        elif (request_id := getattr(inner(command), "request_id", None)) is not None:
            self.ends(who, request_id)

    def begins(self, who: Hashable, what: Hashable, name: str) -> None:
        """`who` asks for something, and gets an answer later."""
        self._count(name)
        self._open.setdefault(who, {})[what] = name
        self._names[name] += 1

    def ends(self, who: Hashable, what: Hashable) -> None:
        """The answer, if it was one."""
        name = self._open.get(who, {}).pop(what, None)
        if name is not None:
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]

    def left(self, who: Hashable) -> None:
        """There will be no answers any more."""
        for what in list(self._open.get(who, ())):
            self.ends(who, what)
        self._open.pop(who, None)

    def _count(self, name: str) -> None:
        self.commands[name] += 1
        for other in self._names:
            self.pairs[(name, other) if name <= other else (other, name)] += 1

    # --- of many simulations ----------------------------------------------------------------------------------------------

    def add(self, commands: Counter[str], pairs: Counter[Pair]) -> None:
        self.commands += commands
        self.pairs += pairs

    def possible(self) -> list[Pair]:
        """All pairs of what was seen."""
        return list(combinations_with_replacement(sorted(self.commands), 2))

    def holes(self) -> list[Pair]:
        """Pairs that never overlapped, those of the most frequent commands first: they had the most chances."""
        missing: Iterable[Pair] = (pair for pair in self.possible() if pair not in self.pairs)
        return sorted(missing, key=lambda pair: (-min(self.commands[name] for name in pair), pair))

    @property
    def share(self) -> float:
        """Of all pairs."""
        return len(self.pairs) / max(1, len(self.possible()))
