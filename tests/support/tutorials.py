"""Runs a tutorial of the documentation as a reader follows it: saves its programs, runs its commands, compares their output.

A page consists of blocks:

- `python` with a title is saved as the file of that name; with `(append)` in the title it is appended to it.
- `bash` runs in the directory of the tutorial, with the environment of the tests.
- `text` is the exact output of the block before it.

A comment in front of a block says more:

- `<!-- run: install -->`: the block installs the environment, which the tests have. `INSTALLATION` has the allowed commands.
- `<!-- run: broker -->`, `<!-- run: crash and start -->`: the block starts the broker, after a `kill -9` of the running one.
- `<!-- run: background -->`: the program keeps running; the test waits for the output of the `text` block.
- `<!-- run: stop NAME -->`: the background program NAME is stopped after the block.
- `<!-- expect: exit N, WORD, ... -->`: the exit code (0 if absent), and words that the output contains.
- `<!-- expect: output of NAME -->`: the `text` block is the output of the background program NAME.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.broker_process import BrokerProcess

PAGES = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
INSTALLATION = {"make .venv", "make .venv/.installed-spark", "source .venv/bin/activate"}
BLOCK = re.compile(
    r"(?:^<!-- (?P<comment>[^\n]+) -->\n)?^```(?P<kind>\w+)(?: title=\"(?P<title>[^\n]+)\")?\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
COMMAND_TIMEOUT_S = 300
OUTPUT_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page, and the comment in front of it."""

    kind: str
    title: str
    text: str
    action: str
    """The text of a comment `run: ...`."""
    expected: tuple[str, ...]
    """The parts of a comment `expect: ...`."""


def blocks_of(page: Path) -> list[Block]:
    found = []
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        purpose, _, value = (match["comment"] or "").partition(": ")
        assert purpose in {"", "run", "expect"}, match[0]
        expected = tuple(value.split(", ")) if purpose == "expect" else ()
        action = value if purpose == "run" else ""
        found.append(Block(match["kind"], match["title"] or "", match["text"], action, expected))
    return found


@dataclass
class Reader:
    """A reader of one tutorial, in an empty directory."""

    directory: Path
    broker: BrokerProcess | None = None
    output: str = ""
    """The output of the last command."""
    programs: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """Programs that run in the background, by the name of their file."""

    def follow(self, page: Path) -> None:
        """Run all blocks of a page. Raises AssertionError if a block does not do what the page says."""
        for block in blocks_of(page):
            {"python": self._save, "bash": self._run, "text": self._compare}[block.kind](block)

    def _save(self, block: Block) -> None:
        name, appended, _ = block.title.partition(" (append)")
        assert name.endswith(".py"), f"a program has no file name:\n{block.text}"
        path = self.directory / name
        before = path.read_text(encoding="utf-8") + "\n\n" if appended else ""
        path.write_text(before + self._addressed(block.text), encoding="utf-8")

    def _run(self, block: Block) -> None:
        if block.action == "install":
            assert set(block.text.splitlines()) <= INSTALLATION, block.text
        elif block.action in {"broker", "crash and start"}:
            self._start_broker(block.text)
        elif block.action == "background":
            self._start_program(block)
        else:
            self._run_commands(block)

    def _start_broker(self, command: str) -> None:
        serve, *settings = command.strip().split(" --set ")
        assert serve == "pybroker serve --data ./data"
        if self.broker is None:
            self.broker = BrokerProcess(self.directory, dict(setting.split("=") for setting in settings))
            self.broker.start()
        else:
            self.broker.restart_after_kill()

    def _start_program(self, block: Block) -> None:
        python, name = block.text.split()
        assert python == "python"
        with self._log_of(name).open("wb") as log:
            self.programs[name] = subprocess.Popen(
                [sys.executable, name],
                cwd=self.directory,
                env=self._environment(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        self.output = name

    def _run_commands(self, block: Block) -> None:
        exit_codes = [int(word.removeprefix("exit ")) for word in block.expected if word.startswith("exit ")]
        done = subprocess.run(
            ["bash", "-e", "-c", self._addressed(block.text)],
            cwd=self.directory,
            env=self._environment(),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == (exit_codes or [0])[0], block.text + done.stdout + done.stderr
        for word in block.expected:
            assert word.startswith("exit ") or word in done.stdout, f"no {word!r} in the output:\n{done.stdout}"
        self.output = done.stdout
        if block.action.startswith("stop "):
            self._stop(block.action.removeprefix("stop "))

    def _compare(self, block: Block) -> None:
        if block.expected:
            (named,) = block.expected
            self._wait_for(named.removeprefix("output of "), block.text)
        elif self.output in self.programs:
            self._wait_for(self.output, block.text)
        else:
            assert self.output.strip() == block.text.strip()

    def _wait_for(self, name: str, text: str) -> None:
        """Wait until the output of a background program is `text`."""
        deadline = time.monotonic() + OUTPUT_TIMEOUT_S
        while (shown := self._log_of(name).read_text(encoding="utf-8")) != text:
            assert text.startswith(shown), f"{name} printed:\n{shown}"
            assert time.monotonic() < deadline, f"{name} printed only:\n{shown}"
            assert self.programs[name].poll() is None, f"{name} has ended:\n{shown}"
            time.sleep(0.02)

    def _log_of(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _stop(self, name: str) -> None:
        program = self.programs[name]
        program.send_signal(signal.SIGKILL)
        program.wait()

    def _addressed(self, text: str) -> str:
        """Replace the usual addresses of a broker by those of the broker of this test."""
        if self.broker is None:
            return text
        return text.replace("pulsar://localhost:6650", self.broker.url).replace(
            "http://localhost:8080", self.broker.http_url
        )

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PULSAR"))}
        path = os.pathsep.join((str(Path(sys.executable).parent), kept["PATH"]))
        addresses = {} if self.broker is None else {"PULSAR_ADMIN_URL": self.broker.http_url}
        return {**kept, **addresses, "PATH": path, "PYBROKER_PROFILES": str(self.directory / "no profiles")}

    def close(self) -> None:
        for name in self.programs:
            self._stop(name)
        if self.broker is not None:
            self.broker.kill()


@contextmanager
def reader_in(directory: Path) -> Iterator[Reader]:
    """A reader, with its programs and its broker ended afterwards."""
    reader = Reader(directory)
    try:
        yield reader
    finally:
        reader.close()
