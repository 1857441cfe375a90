"""Official clients of other languages under the load and the checks of `mixed_load`: a program with producers and consumers.

The program prints one line for each event. "receipt" and "failed": number of the topic, producer, stream, number of the message.
"received": number of the topic, subscription type, consumer, stream, number of the message; a consumer prints it before it
acknowledges. Any other line is an error. After a first line of input, the program ends its producers and prints "ended" when all
their messages have receipts. It ends at the second line.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.bookkeeper.mixed_load import (
    BATCHED,
    DEADLINE_S,
    KEYED,
    KINDS,
    PARTITIONS,
    SINGLE,
    CheckedLoad,
    LoadedTopic,
    several_urls,
)
from tests.support.java import java_command

JAVA_PROGRAM = Path(__file__).with_name("JavaLoad.java")
GO_SOURCES = Path(__file__).parents[1] / "clients/go"
GO_BUILD_DEADLINE_S = 900.0
END_DEADLINE_S = 30.0


def java_load(directory: Path) -> Callable[[Sequence[str], Sequence[LoadedTopic]], CheckedLoad]:
    """Return the start of a load by the Java client. `directory`: of the log."""
    return lambda urls, topics: ProgramLoad(java_command(JAVA_PROGRAM), directory, urls, topics)


def go_load(directory: Path) -> Callable[[Sequence[str], Sequence[LoadedTopic]], CheckedLoad]:
    """Return the start of a load by the Go client. `directory`: of the program and the log. Skips the test without Go."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs the program `go` on the PATH")
    program = directory / "scenarios"
    subprocess.run([go, "build", "-o", str(program), "."], cwd=GO_SOURCES, check=True, timeout=GO_BUILD_DEADLINE_S)
    return lambda urls, topics: ProgramLoad(
        [str(program), "load", urls[0], "http://127.0.0.1:1", ""], directory, urls, topics
    )


def topics_of_programs(namespace: str) -> Sequence[LoadedTopic]:
    """Return a topic and a partitioned topic, each with all types of producers and subscriptions."""
    producers, kinds = (SINGLE, BATCHED, KEYED), tuple(KINDS)
    return (
        LoadedTopic(f"persistent://{namespace}/plain", producers, kinds),
        LoadedTopic(f"persistent://{namespace}/parted", producers, kinds, partitions=PARTITIONS),
    )


class ProgramLoad(CheckedLoad):
    """Clients of `topics_of_programs` in a process of their own."""

    def __init__(
        self, command: Sequence[str], directory: Path, urls: Sequence[str], topics: Sequence[LoadedTopic]
    ) -> None:
        super().__init__(urls, topics)
        self._ended = threading.Event()
        self._log = directory / "clients.log"
        services = ";".join(several_urls(number, urls) for number in range(len(urls)))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, services, *(topic.name for topic in topics)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._event(line.split())
            except (ValueError, IndexError, KeyError):
                self.broken.append(line.strip())
        if not self._ended.is_set():
            self.broken.append(f"the program ended: {self._log.read_text()[-2000:]}")

    def _event(self, words: list[str]) -> None:
        match words:
            case ["receipt", topic, producer, stream, number]:
                self.receipted(self.topics[int(topic)], producer, stream, int(number))
            case ["received", topic, kind, consumer, stream, number]:
                self.subscriptions[self.topics[int(topic)], kind].received(int(consumer), stream, int(number))
            case ["failed", topic, producer, *text]:
                self.failed(self.topics[int(topic)], producer, " ".join(text))
            case ["ended"]:
                self._ended.set()
            case _:
                raise ValueError(words)

    def _order(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end_producers(self) -> None:
        self._order()
        assert self._ended.wait(DEADLINE_S), "the producers did not get their receipts"

    def close_clients(self) -> None:
        self._ended.set()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._thread.join(END_DEADLINE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
