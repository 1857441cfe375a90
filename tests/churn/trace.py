"""What a consumer process writes down while it works, and how it is read again.

One file for each consumer, one line for each event, written at once and before the process does what comes next: a
process that is killed leaves a true trace. Times are of the machine's monotonic clock, which all processes share.

    time_ns kind [producer number key]
"""

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

RECEIVED = "R"  # written after the client handed the message over
ACKED = "A"  # written before the client is told
GIVEN_BACK = "N"  # the same of a negative acknowledgement
CLOSED = "C"  # before the consumer closes
KILLED = "K"  # before its process is killed; written by who kills

HARNESS = "harness"


class Message(NamedTuple):
    """Numbers of a producer rise by one with every message; a key belongs to one producer."""

    producer: str
    number: int
    key: str

    def payload(self) -> bytes:
        return " ".join((self.producer, str(self.number), self.key)).encode()

    @staticmethod
    def of_payload(payload: bytes) -> "Message":
        producer, number, key = payload.decode().split(" ")
        return Message(producer, int(number), key)


@dataclass(frozen=True, slots=True)
class Event:
    """`message` is None for what ends a consumer."""

    time_ns: int
    kind: str
    consumer: str
    message: Message | None = None


class TraceWriter:
    """Owned by one process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, kind: str, text: str) -> None:
        os.write(self._file, f"{time.monotonic_ns()} {kind} {text}\n".encode())

    def message(self, kind: str, message: Message) -> None:
        self.write(kind, message.payload().decode())

    def close(self) -> None:
        os.close(self._file)


def read_traces(directory: Path) -> list[Event]:
    """All events of a run, by time."""
    events = [event for path in directory.glob("*.trace") for event in _events(path)]
    return sorted(events, key=lambda event: event.time_ns)


def _events(path: Path) -> Iterator[Event]:
    yield from parse(path.stem, path.read_text(encoding="utf-8").splitlines())


def parse(consumer: str, lines: Iterable[str]) -> Iterator[Event]:
    """The events of one file; of the harness's, whose lines name the consumer."""
    for line in lines:
        time_ns, kind, *rest = line.split(" ")
        if kind in (CLOSED, KILLED):
            yield Event(int(time_ns), kind, rest[0])
        else:
            yield Event(int(time_ns), kind, consumer, Message(rest[0], int(rest[1]), rest[2]))
