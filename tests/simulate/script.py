"""What the clients of a simulated run do, as plain data: drawn from a seed first, and then run, shrunk or printed.

What must hold: a script says everything that its actors do; whoever leaves steps, actors or faults out of it gets a script that
runs as well, since a step whose object is not there does nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

CLIENT = "client"
ADMIN = "admin"
NATURE = "nature"


@dataclass(frozen=True)
class Step:
    """One thing that an actor does; `facts` are its arguments, all of them plain values."""

    do: str
    facts: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.do, *(f"{name}={value}" for name, value in self.facts.items())])


@dataclass(frozen=True)
class ActorScript:
    """One actor, whose steps come one after the other. A client has a connection, an admin HTTP, nature the faults."""

    name: str
    kind: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Script:
    """A whole run. `topics` maps names to what is set for them; `settings` are fields of BrokerConfig."""

    seed: int
    settings: dict[str, Any]
    topics: dict[str, dict[str, Any]]
    actors: tuple[ActorScript, ...]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, {self.settings}"]
        lines += [f"topic {name}: {facts}" for name, facts in self.topics.items()]
        for actor in self.actors:
            lines.append(f"{actor.kind} {actor.name}:")
            lines += [f"    {step}" for step in actor.steps]
        return "\n".join(lines)

    @property
    def step_count(self) -> int:
        return sum(len(actor.steps) for actor in self.actors)

    def to_json(self) -> str:
        """What `from_json` takes; a line for each step, for people who read it in a file of scripts that once failed."""
        head = {"seed": self.seed, "settings": self.settings, "topics": self.topics}
        actors = [
            {"name": each.name, "kind": each.kind, "steps": [[step.do, step.facts] for step in each.steps]}
            for each in self.actors
        ]
        return json.dumps({**head, "actors": actors})

    @staticmethod
    def from_json(text: str) -> Script:
        found = json.loads(text)
        actors = tuple(
            ActorScript(each["name"], each["kind"], tuple(Step(do, facts) for do, facts in each["steps"]))
            for each in found["actors"]
        )
        return Script(found["seed"], found["settings"], found["topics"], actors)


def smaller(script: Script) -> Iterator[Script]:
    """Scripts with something left out, those that leave out most first: whole actors, halves and quarters, single steps."""
    for actor in script.actors:
        if len(script.actors) > 1:
            yield replace(script, actors=tuple(each for each in script.actors if each is not actor))
    for actor in script.actors:
        size = max(1, len(actor.steps) // 2)
        while actor.steps:
            for start in range(0, len(actor.steps), size):
                steps = actor.steps[:start] + actor.steps[start + size :]
                yield _with(script, actor, steps)
            if size == 1:
                break
            size //= 2


def _with(script: Script, actor: ActorScript, steps: tuple[Step, ...]) -> Script:
    actors = tuple(replace(each, steps=steps) if each is actor else each for each in script.actors)
    return replace(script, actors=actors)
