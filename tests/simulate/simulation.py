"""One seed from its script to its verdict: what the driver, the planted bugs and tests run."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulate.case import Finding
from tests.simulate.drawing import draw
from tests.simulate.judge import judge
from tests.simulate.running import Run, run
from tests.simulate.script import Script, smaller
from tests.simulate.world import World


@dataclass
class Verdict:
    """Of one script in one world. `run` is None when the world did not come to its end."""

    script: Script
    world: World | None
    run: Run | None
    findings: list[Finding]

    @property
    def rules(self) -> set[str]:
        return {finding.rule for finding in self.findings}


def simulate(seed: int) -> Verdict:
    """What becomes of the script of `seed`."""
    return play(draw(seed))


def play(script: Script) -> Verdict:
    """What becomes of `script`, in the world of its seed."""

    async def scenario(world: World) -> Run:
        return await run(world, script)

    try:
        world = World.run(script.seed, scenario, script.settings)
    except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001  (it is the finding)
        return Verdict(script, None, None, [Finding("world", f"{type(error).__name__}: {error}")])
    found: Run = world.result
    bugs = [Finding("bug", text) for text in world.bugs]
    return Verdict(script, world, found, [*judge(found), *bugs])


def shrunk(script: Script, rules: set[str], attempts: int = 300) -> Script:
    """The smallest script found that still breaks one of `rules`, by leaving out actors and steps."""
    is_smaller = True
    while is_smaller and attempts > 0:
        is_smaller = False
        for candidate in smaller(script):
            attempts -= 1
            if attempts < 0:
                break
            if play(candidate).rules & rules:
                script, is_smaller = candidate, True
                break
    return script
