"""One script from start to verdict: the simulation, the clients, what is left behind, and what the oracle reports of it all."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.simulate.coverage import Pair
from tests.simulate.drawing import draw
from tests.simulate.judge import judge
from tests.simulate.leftovers import after_clients, after_stop
from tests.simulate.running import run
from tests.simulate.script import Script
from tests.simulate.simulation import Simulation

LEFT_AFTER_S = 100.0
"""By then a connection that was cut silently has been found out, and what the last client began has ended."""


@dataclass
class Outcome:
    """What came of a script. `findings` by rule, in words; `kinds` are those rules. Plain values, for another process."""

    seed: int
    findings: list[tuple[str, str]] = field(default_factory=list)
    virtual_s: float = 0.0
    took_s: float = 0.0
    crashes: int = 0
    turns: int = 0
    digest: str = ""
    commands: Counter[str] = field(default_factory=Counter)
    pairs: Counter[Pair] = field(default_factory=Counter)
    history: list[str] = field(default_factory=list)
    """For people, and only when it is asked for."""

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(rule for rule, _ in self.findings)


def play_seed(seed: int) -> Outcome:
    return play(draw(seed))


def play(script: Script, *, keeps_history: bool = False) -> Outcome:
    """Never raises: whatever escapes is a finding."""
    outcome = Outcome(script.seed)
    began_s = time.process_time()
    simulation: Simulation | None = None

    async def scenario(made: Simulation) -> Any:
        nonlocal simulation
        simulation = made
        made.notes_commands = keeps_history
        found = await run(made, script)
        outcome.findings += [(finding.rule, finding.text) for finding in judge(found)]
        await _leave(made, outcome)

    try:
        Simulation.run(script.seed, scenario, script.settings)
    except BaseExceptionGroup as group:
        outcome.findings += [escaped(error) for error in group.exceptions]
    except (Exception, AssertionError) as error:  # noqa: BLE001
        outcome.findings.append(escaped(error))
    if simulation is not None:
        outcome.findings += [("bug", bug) for bug in simulation.bugs]
        outcome.virtual_s = simulation.now_s - simulation.began_s
        outcome.crashes, outcome.turns, outcome.digest = simulation.crashes, simulation.loop.turns, simulation.digest
        if keeps_history:
            outcome.history = [str(happened) for happened in simulation.history]
        outcome.commands, outcome.pairs = simulation.coverage.commands, simulation.coverage.pairs
    outcome.took_s = time.process_time() - began_s
    return outcome


async def _leave(simulation: Simulation, outcome: Outcome) -> None:
    await simulation.sleep(LEFT_AFTER_S)
    life = simulation.life
    assert life is not None
    outcome.findings += [("left after clients", line) for line in after_clients(life)]
    await simulation.stop()
    outcome.findings += [("left after stop", line) for line in after_stop(life)]
    if Random(f"{simulation.seed} again").random() < 0.2:
        await simulation.start()  # what a stop has left is not refused
        await simulation.stop()


def escaped(error: BaseException) -> tuple[str, str]:
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = "" if place is None else f" in {place.tb_frame.f_code.co_name}, line {place.tb_lineno}"
    return f"escaped {type(error).__name__}", f"{error}{where}"
