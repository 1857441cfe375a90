"""The faults that a test injects between clients and an embedded broker.

The rules here decide about each command, receipt and delivery; `in_process_connection.py` applies them. A fault is
active until `undo`, or until it has happened the requested number of times. A fault that never happened causes a
warning when it ends, because a test with a wrong topic would otherwise pass for the wrong reason.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeVar

from pybroker.embedding.stores import Fullness
from pybroker.errors import BrokerError
from pybroker.model.names import TopicName
from pybroker.wire import pulsar_api_pb2 as pb

T = TypeVar("T")
MAX_MISSED = 3
"""Maximum number of topics in the warning about an unused fault."""
_REFUSABLE = (
    "CONNECT",
    "PARTITIONED_METADATA",
    "LOOKUP",
    "GET_TOPICS_OF_NAMESPACE",
    "PRODUCER",
    "CLOSE_PRODUCER",
    "SEND",
    "SUBSCRIBE",
    "CLOSE_CONSUMER",
    "UNSUBSCRIBE",
    "ACK",
    "GET_LAST_MESSAGE_ID",
    "SEEK",
    "GET_SCHEMA",
    "GET_OR_CREATE_SCHEMA",
    "WATCH_TOPIC_LIST",
    "TC_CLIENT_CONNECT_REQUEST",
    "NEW_TXN",
    "ADD_PARTITION_TO_TXN",
    "ADD_SUBSCRIPTION_TO_TXN",
    "END_TXN",
)


class Line(Protocol):
    """A client's connection, as far as faults need it."""

    def topics(self) -> Iterable[str]: ...

    def names(self) -> Iterable[str]: ...

    def drop(self) -> None: ...

    def stall(self) -> None: ...

    def unstall(self) -> None: ...

    def hurry_receipts(self) -> None:
        """Send the receipts that a fault has delayed."""

    def hurry_messages(self) -> None:
        """Send the messages that a fault has delayed."""


@dataclass(frozen=True, slots=True)
class Whom:
    """A selection of connections: those with a producer or consumer on `topic`, and with a producer name, consumer name
    or client version that contains `name`. None matches every connection.
    """

    topic: str | None = None
    name: str | None = None

    @classmethod
    def of(cls, topic: str | None, name: str | None) -> Self:
        """Create a selection of connections. `topic` is with or without domain and namespace. Raises
        InvalidTopicName.
        """
        return cls(None if topic is None else str(TopicName.parse(topic)), name)

    def means_topic(self, topic: str) -> bool:
        """Return whether the selection includes the topic. A partition is included with its partitioned topic."""
        if self.topic is None or self.topic == topic:
            return True
        return bool(topic) and str(TopicName.parse(topic).partitioned_name) == self.topic

    def means(self, line: Line) -> bool:
        if self.topic is not None and not any(self.means_topic(topic) for topic in line.topics()):
            return False
        return self.name is None or any(self.name in name for name in line.names())


class UnusedFault(UserWarning):
    """A fault of a test has ended without ever happening."""


class Unused(NamedTuple):
    """The warning about a fault that never happened, and the line of the test that created the fault."""

    text: str
    file: str
    line: int


def warn_of(unused: Iterable[Unused]) -> None:
    """Emit each warning for the source code line that created its fault. Raises UnusedFault if warnings are errors."""
    for each in unused:
        warnings.warn_explicit(each.text, UnusedFault, each.file, each.line)


@dataclass(eq=False, slots=True)
class Aim:
    """Selects the commands, receipts or deliveries to which a fault applies, and records whether there were any."""

    whom: Whom
    call: str
    what: str
    """Singular noun of the selected objects, for the warning."""
    has_happened: bool = False
    missed: list[str] = field(default_factory=list)
    """Topics of commands that did not match."""

    def meets(self, topic: str, line: Line) -> bool:
        """Return whether the fault applies to this topic (may be empty) and connection, and record the result."""
        if _fits(self.whom, topic, line):
            self.has_happened = True
            return True
        if topic and topic not in self.missed and len(self.missed) < MAX_MISSED:
            self.missed.append(topic)
        return False

    def report(self) -> str | None:
        """Return the warning text if the fault never happened, else None."""
        if self.has_happened:
            return None
        told = "".join(
            f", {name} {value}" for name, value in (("topic", self.whom.topic), ("name", self.whom.name)) if value
        )
        others = (
            f"Topics that had a {self.what}: {', '.join(self.missed)}."
            if self.missed
            else f"No topic had a {self.what}."
        )
        return f"The fault {self.call}{told} never happened: no {self.what} matched it. {others}"


class Fault:
    """An active fault. As a context manager it is undone at the end of the block."""

    def __init__(self, undo: Callable[[], Unused | None]) -> None:
        self._undo = undo

    def undo(self) -> None:
        """End the fault. Idempotent. Warns of a fault that never happened (UnusedFault)."""
        unused = self.end()
        if unused is not None:
            warn_of([unused])

    def end(self) -> Unused | None:
        return self._undo()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


@dataclass(eq=False, slots=True)
class Refusal:
    """Answers the next `left` commands of these types with an error."""

    types: frozenset[int]
    error: BrokerError
    left: int
    aim: Aim


@dataclass(eq=False, slots=True)
class ReceiptFault:
    """Sends each of the next `left` receipts (None: every receipt) `copies` times, after a delay of `delay_s`."""

    copies: int
    delay_s: float
    left: int | None
    aim: Aim


@dataclass(eq=False, slots=True)
class Slowness:
    """Sends a consumer at most one entry every `seconds_each` seconds."""

    seconds_each: float
    aim: Aim
    subscription: str | None


Aimed = TypeVar("Aimed", Refusal, ReceiptFault, Slowness)


class Faults:
    """The active faults of a broker. The methods that create or end faults may be called from any thread; they run on
    the broker's event loop.
    """

    def __init__(
        self, fullness: Fullness, lines: Callable[[], list[Line]], run: Callable[[Callable[[], T]], T]
    ) -> None:
        """`lines` returns the connections; `run` executes a function on the broker's event loop and waits for it."""
        self._fullness = fullness
        self._lines = lines
        self._run: Callable[[Callable[[], object]], object] = run  # type: ignore[assignment]
        self._refusals: list[Refusal] = []
        self._receipts: list[ReceiptFault] = []
        self._slow: list[Slowness] = []
        self._made: list[Fault] = []

    # --- creation of faults --------------------------------------------------------------------------------------------

    def drop_connections(self, topic: str | None = None, name: str | None = None) -> int:
        """Close connections, and return their number. Clients reconnect by themselves.

        `topic`: only connections with a producer or consumer on this topic. `name`: only connections with a producer
        name, consumer name or client version that contains `name`. Without both, all connections are closed.
        """
        whom = Whom.of(topic, name)

        def drop() -> int:
            meant = self._meant(whom)
            for line in meant:
                line.drop()
            return len(meant)

        dropped = self._run(drop)
        assert isinstance(dropped, int)
        return dropped

    def stall_connections(self, topic: str | None = None, name: str | None = None) -> Fault:
        """Stop reading and writing on connections, which stay open, as when a network loses all packets. `topic` and
        `name` select the connections as in `drop_connections`.
        """
        aim = Aim(Whom.of(topic, name), "stall_connections", "connection")
        stalled: list[Line] = []

        def begin() -> None:
            stalled.extend(self._meant(aim.whom))
            aim.has_happened = bool(stalled)
            aim.missed = sorted({each for line in self._lines() for each in line.topics()})[:MAX_MISSED]
            for line in stalled:
                line.stall()

        def end() -> None:
            while stalled:
                stalled.pop().unstall()

        return self._made_by(begin, end, aim)

    def refuse(
        self,
        command: str,
        error: str | type[BrokerError] = "ServiceNotReady",
        count: int = 1,
        *,
        message: str = "refused by a test",
        topic: str | None = None,
        name: str | None = None,
    ) -> Fault:
        """Answer the next `count` commands of a kind, such as `PRODUCER`, `SUBSCRIBE`, `LOOKUP`, `SEND` or `ACK`, with
        `error`, a ServerError of the protocol. `topic`: only commands for this topic. `name`: only on connections with
        a producer name, consumer name or client version that contains `name`. Raises ValueError for an unknown command
        or error.
        """
        types = frozenset({_command_type(command)})
        aim = Aim(Whom.of(topic, name), f"refuse({command.upper()})", "command")
        refusal = Refusal(types, _error_class(error)(message), count, aim)
        return self._in_force(self._refusals, refusal, _nothing)

    def lose_receipts(self, count: int = 1, *, topic: str | None = None, name: str | None = None) -> Fault:
        """Store the next `count` messages without sending receipts. `topic` and `name` as in `delay_receipts`."""
        aim = Aim(Whom.of(topic, name), "lose_receipts", "receipt")
        return self._in_force(self._receipts, ReceiptFault(0, 0, count, aim), _nothing)

    def duplicate_receipts(self, count: int = 1, *, topic: str | None = None, name: str | None = None) -> Fault:
        aim = Aim(Whom.of(topic, name), "duplicate_receipts", "receipt")
        return self._in_force(self._receipts, ReceiptFault(2, 0, count, aim), _nothing)

    def delay_receipts(self, seconds: float, *, topic: str | None = None, name: str | None = None) -> Fault:
        """Send each receipt `seconds` later, by the broker's clock. `undo` sends the delayed receipts. `topic`: only
        receipts for this topic. `name`: only on connections with a producer name, consumer name or client version that
        contains `name`.
        """
        fault = ReceiptFault(1, seconds, None, Aim(Whom.of(topic, name), "delay_receipts", "receipt"))
        return self._in_force(self._receipts, fault, lambda line: line.hurry_receipts())

    def slow_consumer(
        self,
        seconds_each: float,
        *,
        topic: str | None = None,
        subscription: str | None = None,
        name: str | None = None,
    ) -> Fault:
        """Send consumers one entry (a message or a batch) every `seconds_each` seconds of the broker's clock. `topic`
        and `subscription`: only deliveries from them. `name`: only on connections with a producer name, consumer name
        or client version that contains `name`.
        """
        fault = Slowness(seconds_each, Aim(Whom.of(topic, name), "slow_consumer", "delivery"), subscription)
        return self._in_force(self._slow, fault, lambda line: line.hurry_messages())

    def full_disk(self) -> Fault:
        def fill(is_full: bool) -> Callable[[], None]:
            return lambda: setattr(self._fullness, "is_full", is_full)

        return self._made_by(fill(True), fill(False))

    def undo_all(self) -> None:
        """End all faults. Warns of faults that never happened (UnusedFault)."""
        warn_of(self.end_all())

    def end_all(self) -> list[Unused]:
        unused = []
        while self._made:
            report = self._made[-1].end()
            if report is not None:
                unused.append(report)
        return unused

    # --- active faults, used on the event loop -------------------------------------------------------------------------

    def refusal_of(self, command_type: int, topic: str, line: Line) -> BrokerError | None:
        """Return the error with which the broker must answer the command, and count this as one use of the fault.
        Return None if no fault applies.
        """
        for refusal in self._refusals:
            if command_type in refusal.types and refusal.left > 0 and refusal.aim.meets(topic, line):
                refusal.left -= 1
                return refusal.error
        return None

    def receipt_of(self, topic: str, line: Line) -> ReceiptFault | None:
        """Return the fault that applies to this receipt, and count this as one use of the fault. Return None if no
        fault applies.
        """
        for fault in self._receipts:
            if (fault.left is None or fault.left > 0) and fault.aim.meets(topic, line):
                if fault.left is not None:
                    fault.left -= 1
                return fault
        return None

    @property
    def touches_commands(self) -> bool:
        return bool(self._refusals)

    @property
    def touches_receipts(self) -> bool:
        return bool(self._receipts)

    def seconds_each(self, topic: str, subscription: str, line: Line) -> float:
        """Return the injected delay, in seconds, between two deliveries to a consumer; 0 without a fault. `line`: the
        connection of the consumer's client."""
        if not self._slow:
            return 0
        found = [
            slow.seconds_each
            for slow in self._slow
            if slow.subscription in {None, subscription} and slow.aim.meets(topic, line)
        ]
        return max(found, default=0)

    def _meant(self, whom: Whom) -> list[Line]:
        return [line for line in self._lines() if whom.means(line)]

    def _in_force(self, faults: list[Aimed], fault: Aimed, let_go: Callable[[Line], None]) -> Fault:
        """Activate a fault. `let_go` makes each connection send the data that the fault has delayed."""

        def end() -> None:
            if fault in faults:
                faults.remove(fault)
            for line in self._lines():
                let_go(line)

        return self._made_by(lambda: faults.append(fault), end, fault.aim)

    def _made_by(self, begin: Callable[[], None], end: Callable[[], None], aim: Aim | None = None) -> Fault:
        file, line = _caller()

        def undo() -> Unused | None:
            if made not in self._made:
                return None
            self._made.remove(made)
            end()
            report = None if aim is None else aim.report()
            return None if report is None else Unused(report, file, line)

        def run_undo() -> Unused | None:
            found = self._run(undo)
            assert found is None or isinstance(found, Unused)
            return found

        made = Fault(run_undo)

        def do() -> None:
            self._made.append(made)
            begin()

        self._run(do)
        return made


def _caller() -> tuple[str, int]:
    frame = sys._getframe(1)  # noqa: SLF001  (as `warnings` does)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _nothing(line: Line) -> None: ...


def _fits(whom: Whom, topic: str, line: Line) -> bool:
    return whom.means_topic(topic) and (whom.name is None or any(whom.name in name for name in line.names()))


def _command_type(command: str) -> int:
    if command.upper() not in _REFUSABLE:
        raise ValueError(f"{command!r} is not a command that can be refused: use one of {', '.join(_REFUSABLE)}")
    return int(pb.BaseCommand.Type.Value(command.upper()))


def _error_class(error: str | type[BrokerError]) -> type[BrokerError]:
    if isinstance(error, str):
        named = {each.__name__: each for each in BrokerError.by_code.values()}
        if error not in named:
            raise ValueError(f"there is no ServerError {error!r}: use one of {', '.join(sorted(named))}")
        return named[error]
    if not (isinstance(error, type) and issubclass(error, BrokerError)):
        raise ValueError(
            f"{error!r} is not a ServerError: use the name of an error, such as ServiceNotReady, or a subclass of BrokerError"
        )
    return error
