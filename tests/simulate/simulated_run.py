"""What simulations of one broker and of a cluster have in common: loop, time, history, logs, digest, and the end of everything.

What must hold: the same seed and scenario give the same bytes on the network at the same times, in any process. What a broker
logs as a bug, and what escapes its tasks and callbacks, is in `bugs` and fails nobody by itself: the judge looks there.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Self

from tests.simulate.coverage import Coverage, inner
from tests.simulate.life import BrokerLife
from tests.simulate.loop import SimulatedLoop, running_process
from tests.simulate.wire import Wire

from pybroker.runtime import logs
from pybroker.wire import pulsar_api_pb2 as pb

Scenario = Callable[[Any], Awaitable[Any]]
"""Called with the simulation."""
LONGEST_S = 24 * 3600.0
_SURE_BUGS = frozenset({"append.completion_failed", "task.failed", "cursor.snapshot_failed"})


class TooLong(AssertionError):
    """The scenario has not ended within the time that a simulation lasts."""


@dataclass(frozen=True, slots=True)
class Happened:
    """One line of the history."""

    at_s: float
    actor: str
    what: str
    facts: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join(
            [f"{self.at_s:.6f}", self.actor, self.what, *(f"{key}={value}" for key, value in self.facts.items())]
        )


class SimulatedRun:
    """Made by `run`. `settings` are fields of BrokerConfig."""

    def __init__(self, seed: int, settings: dict[str, Any]) -> None:
        self.seed = seed
        self.settings = settings
        self.loop = SimulatedLoop(self.chance("loop"), 1000.0)
        self.began_s = self.loop.time()
        self.loop.set_exception_handler(self._escaped)
        self.history: list[Happened] = []
        self.notes_commands = False
        """Whether each command is a line of the history, too."""
        self.bugs: list[str] = []
        self.coverage = Coverage()
        self.crashes = 0
        self.starts = 0
        self.result: Any = None
        self.lives: list[BrokerLife] = []
        self._wires = 0
        self._bytes_heard = hashlib.blake2b(digest_size=16)
        self._is_ending = False

    @classmethod
    def run(cls, seed: int, scenario: Scenario, settings: dict[str, Any] | None = None) -> Self:
        """Play `scenario` to its end and return the simulation as it was left. Raises what escapes the scenario."""
        simulation = cls(seed, settings or {})
        with quiet_collector(), simulation._logs_heard(), simulation._names_drawn():
            playing = simulation.loop.create_task(simulation._play(scenario))
            try:
                simulation.result = simulation.loop.run_until_complete(playing)
            finally:
                simulation._bury()
        return simulation

    async def _play(self, scenario: Scenario) -> Any:
        self._begin()
        ended = asyncio.ensure_future(scenario(self))
        done, _ = await asyncio.wait([ended], timeout=LONGEST_S)
        if not done:
            ended.cancel()
            raise TooLong(f"{LONGEST_S / 3600:.0f} hours of the simulation's time")
        return ended.result()

    def _begin(self) -> None:
        """Start what runs beside the scenario."""

    def chance(self, name: str) -> Random:
        """A stream of its own for each name."""
        return Random(f"{self.seed} {name}")

    @property
    def now_s(self) -> float:
        return self.loop.time()

    @property
    def digest(self) -> str:
        """Of every byte that arrived anywhere, with direction and time."""
        return self._bytes_heard.hexdigest()

    async def sleep(self, seconds: float) -> None:
        """Let so much of the simulation's time pass."""
        await asyncio.sleep(seconds)

    def note(self, actor: str, what: str, **facts: Any) -> None:
        """One line of the history."""
        self.history.append(Happened(self.loop.time(), actor, what, facts))

    # --- what is heard -----------------------------------------------------------------------------------------------

    def command_sent(self, wire: Wire, command: pb.BaseCommand) -> None:
        self.coverage.sent(wire.number, command)
        if self.notes_commands:
            self.note(f"wire {wire.number}", "says", command=_text(command))

    def command_received(self, wire: Wire, command: pb.BaseCommand) -> None:
        self.coverage.received(wire.number, command)
        if self.notes_commands:
            self.note(f"wire {wire.number}", "hears", command=_text(command))

    def wire_closed(self, wire: Wire) -> None:
        self.coverage.left(wire.number)

    def _heard(self, direction: str, data: bytes) -> None:
        self._bytes_heard.update(f"{self.loop.time()!r} {direction} {len(data)} ".encode())
        self._bytes_heard.update(data)

    def _escaped(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._is_ending and not _is_of_the_dead(context):
            self.bugs.append(f"{context.get('message')}: {context.get('exception')!r}")

    @contextmanager
    def _logs_heard(self) -> Iterator[None]:
        saved = {name: getattr(logs, name) for name in ("debug", "info", "warning", "error")}

        def pass_over(event: str, /, **fields: Any) -> None:
            """Nobody reads it."""

        def hear(event: str, /, exc_info: Any = None, **fields: Any) -> None:
            if self._is_ending:
                return
            process = running_process()
            name = process.name if isinstance(process, BrokerLife) else "broker"
            self.note(name, event, **{key: str(value) for key, value in fields.items()})
            if event in _SURE_BUGS or isinstance(exc_info, BaseException):
                self.bugs.append(f"{event}: {exc_info!r} {fields}")

        logs.debug = logs.info = pass_over
        logs.warning = logs.error = hear
        try:
            yield
        finally:
            for name, function in saved.items():
                setattr(logs, name, function)

    @contextmanager
    def _names_drawn(self) -> Iterator[None]:
        """Draw the names of readers, which the brokers' own clients make up."""
        names, saved = self.chance("names of readers"), secrets.token_hex
        secrets.token_hex = lambda nbytes=None: names.randbytes(nbytes or 8).hex()
        try:
            yield
        finally:
            secrets.token_hex = saved

    def _bury(self) -> None:
        self._is_ending = True
        for process in self.lives:
            if not process.is_over:
                process.end()
        # The scenario's own tasks first: they may still ask for something.
        for task in self.loop.tasks(None):  # type: ignore[arg-type]
            task.cancel()
        for _ in range(20):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        for process in self.lives:
            process.bury()
        self.loop.close()


def _text(command: pb.BaseCommand) -> str:
    return f"{pb.BaseCommand.Type.Name(command.type)} {' '.join(str(inner(command)).split())}"


def _is_of_the_dead(context: dict[str, Any]) -> bool:
    process = getattr(context.get("task") or context.get("future"), "process", None)
    return process is not None and process.is_over


@contextmanager
def quiet_collector() -> Iterator[None]:
    """What is collected, and when, must not depend on what ran before."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
