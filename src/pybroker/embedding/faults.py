"""What a test makes go wrong between clients and a broker, and what of it is in force.

Rules only: they say what is to happen to a command, a receipt, a delivery; `connection` does it. A fault is in force from the call
that makes it until `undo`, or until it has happened as often as was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TypeVar

from pybroker.embedding.stores import Fullness
from pybroker.errors import BrokerError
from pybroker.model.names import TopicName
from pybroker.wire import pulsar_api_pb2 as pb

T = TypeVar("T")
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
    """A client's connection, as faults look at it and act on it."""

    def topics(self) -> Iterable[str]:
        """Of its producers and consumers, as full names."""

    def names(self) -> Iterable[str]:
        """Of its producers and consumers, and what its client calls itself."""

    def drop(self) -> None:
        """Cut it."""

    def stall(self) -> None:
        """Neither read nor write from now on."""

    def unstall(self) -> None:
        """Go on with what has gathered."""

    def hurry_receipts(self) -> None:
        """Send those that a fault has held back."""

    def hurry_messages(self) -> None:
        """The same with what consumers are to get."""


@dataclass(frozen=True, slots=True)
class Whom:
    """Who is meant: all that is given has to fit, and nothing given means everybody."""

    topic: str | None = None
    name: str | None = None

    @classmethod
    def of(cls, topic: str | None, name: str | None) -> Self:
        """`topic` with or without its domain and namespace. Raises InvalidTopicName."""
        return cls(None if topic is None else str(TopicName.parse(topic)), name)

    def means_topic(self, topic: str) -> bool:
        """A partition is meant with its topic."""
        if self.topic is None or self.topic == topic:
            return True
        return bool(topic) and str(TopicName.parse(topic).partitioned_name) == self.topic

    def means(self, line: Line) -> bool:
        if self.topic is not None and not any(self.means_topic(topic) for topic in line.topics()):
            return False
        return self.name is None or any(self.name in name for name in line.names())


class Fault:
    """One that is in force; `with` undoes it at the end. Idempotent."""

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo = undo

    def undo(self) -> None:
        """From now on it does not happen any more."""
        self._undo()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


@dataclass(eq=False, slots=True)
class Refusal:
    """The next `left` commands of these types are refused."""

    types: frozenset[int]
    error: BrokerError
    left: int
    whom: Whom


@dataclass(eq=False, slots=True)
class ReceiptFault:
    """What happens to the next `left` receipts: they are sent `copies` times, `delay_s` later."""

    copies: int
    delay_s: float
    left: int | None
    whom: Whom


@dataclass(eq=False, slots=True)
class Slowness:
    """A consumer that is sent one entry in so many seconds."""

    seconds_each: float
    whom: Whom
    subscription: str | None


class Faults:
    """Owned by an embedded broker. Its methods may be called from any thread when it was given a `run` for that."""

    def __init__(
        self, fullness: Fullness, lines: Callable[[], list[Line]], run: Callable[[Callable[[], T]], T]
    ) -> None:
        """`lines` are the connections that there are; `run` has something done on the broker's loop, and waits for it."""
        self._fullness = fullness
        self._lines = lines
        self._run: Callable[[Callable[[], object]], object] = run  # type: ignore[assignment]
        self._refusals: list[Refusal] = []
        self._receipts: list[ReceiptFault] = []
        self._slow: list[Slowness] = []
        self._made: list[Fault] = []

    # --- what a test says --------------------------------------------------------------------------------------------

    def drop_connections(self, topic: str | None = None, name: str | None = None) -> int:
        """Cut the connections of clients that produce to or consume from `topic`, or whose producer, consumer or client is called
        `name`; all of them without either. How many there were. Clients connect again by themselves."""
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
        """These connections, which stay open, are neither read nor written any more, as when a network loses all packets."""
        whom = Whom.of(topic, name)
        stalled: list[Line] = []

        def begin() -> None:
            stalled.extend(self._meant(whom))
            for line in stalled:
                line.stall()

        def end() -> None:
            while stalled:
                stalled.pop().unstall()

        return self._made_by(begin, end)

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
        """Answer the next `count` commands of a kind, such as `PRODUCER`, `SUBSCRIBE`, `LOOKUP`, `SEND` or `ACK`, with `error`: any
        ServerError of the protocol. `topic` is that of the command. Raises ValueError for names that there are not."""
        types = frozenset({_command_type(command)})
        refusal = Refusal(types, _error_class(error)(message), count, Whom.of(topic, name))
        return self._in_force(self._refusals, refusal, _nothing)

    def lose_receipts(self, count: int = 1, *, topic: str | None = None, name: str | None = None) -> Fault:
        """The next `count` messages are stored, and their producers are not told."""
        return self._in_force(self._receipts, ReceiptFault(0, 0, count, Whom.of(topic, name)), _nothing)

    def duplicate_receipts(self, count: int = 1, *, topic: str | None = None, name: str | None = None) -> Fault:
        """The receipts of the next `count` messages are sent twice."""
        return self._in_force(self._receipts, ReceiptFault(2, 0, count, Whom.of(topic, name)), _nothing)

    def delay_receipts(self, seconds: float, *, topic: str | None = None, name: str | None = None) -> Fault:
        """Receipts are sent `seconds` of the broker's time later; those that wait are sent when the fault is undone."""
        fault = ReceiptFault(1, seconds, None, Whom.of(topic, name))
        return self._in_force(self._receipts, fault, lambda line: line.hurry_receipts())

    def slow_consumer(
        self,
        seconds_each: float,
        *,
        topic: str | None = None,
        subscription: str | None = None,
        name: str | None = None,
    ) -> Fault:
        """Consumers get an entry, a message or a batch, only each `seconds_each` of the broker's time, though it is theirs already:
        as one that takes so long for each."""
        fault = Slowness(seconds_each, Whom.of(topic, name), subscription)
        return self._in_force(self._slow, fault, lambda line: line.hurry_messages())

    def full_disk(self) -> Fault:
        """There is no space for more entries: publishes are refused until there is."""

        def fill(is_full: bool) -> Callable[[], None]:
            return lambda: setattr(self._fullness, "is_full", is_full)

        return self._made_by(fill(True), fill(False))

    def undo_all(self) -> None:
        """Nothing goes wrong any more."""
        while self._made:
            self._made[-1].undo()

    # --- what is in force, asked on the loop -------------------------------------------------------------------------

    def refusal_of(self, command_type: int, topic: str, line: Line) -> BrokerError | None:
        """Why this command is refused, which counts; None when it is not."""
        for refusal in self._refusals:
            if command_type in refusal.types and refusal.left > 0 and _fits(refusal.whom, topic, line):
                refusal.left -= 1
                return refusal.error
        return None

    def receipt_of(self, topic: str, line: Line) -> ReceiptFault | None:
        """What is to happen to this receipt, which counts; None when it is sent as it is."""
        for fault in self._receipts:
            if (fault.left is None or fault.left > 0) and _fits(fault.whom, topic, line):
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
        """How long each entry takes for this consumer; 0 for no time."""
        if not self._slow:
            return 0
        found = [
            slow.seconds_each
            for slow in self._slow
            if _fits(slow.whom, topic, line) and slow.subscription in {None, subscription}
        ]
        return max(found, default=0)

    def _meant(self, whom: Whom) -> list[Line]:
        return [line for line in self._lines() if whom.means(line)]

    def _in_force(self, faults: list[T], fault: T, let_go: Callable[[Line], None]) -> Fault:
        """`let_go` has each connection do what the fault has held back."""

        def end() -> None:
            if fault in faults:
                faults.remove(fault)
            for line in self._lines():
                let_go(line)

        return self._made_by(lambda: faults.append(fault), end)

    def _made_by(self, begin: Callable[[], None], end: Callable[[], None]) -> Fault:
        def undo() -> None:
            if made in self._made:
                self._made.remove(made)
                end()

        made = Fault(lambda: self._run(undo))

        def do() -> None:
            self._made.append(made)
            begin()

        self._run(do)
        return made


def _nothing(line: Line) -> None:
    """Nothing was held back."""


def _fits(whom: Whom, topic: str, line: Line) -> bool:
    """Whether a command about `topic`, which may be none, of a client is meant."""
    return whom.means_topic(topic) and (whom.name is None or any(whom.name in name for name in line.names()))


def _command_type(command: str) -> int:
    if command.upper() not in _REFUSABLE:
        raise ValueError(f"no command {command!r} that can be refused: there are {', '.join(_REFUSABLE)}")
    return int(pb.BaseCommand.Type.Value(command.upper()))


def _error_class(error: str | type[BrokerError]) -> type[BrokerError]:
    if isinstance(error, str):
        named = {each.__name__: each for each in BrokerError.by_code.values()}
        if error not in named:
            raise ValueError(f"no ServerError {error!r}: there are {', '.join(sorted(named))}")
        return named[error]
    if not (isinstance(error, type) and issubclass(error, BrokerError)):
        raise ValueError(f"no ServerError: {error!r}")
    return error
