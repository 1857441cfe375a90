"""The kinds of simulations: one broker, and a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from tests.simulate.cluster.cluster_drawing import draw_cluster
from tests.simulate.cluster.cluster_outcome import play_cluster
from tests.simulate.drawing import draw
from tests.simulate.outcome import Outcome, play
from tests.simulate.script import Script

SINGLE = "single"
CLUSTER = "cluster"


class Play(Protocol):
    """Plays a script and judges it."""

    def __call__(self, script: Script, *, keeps_history: bool = False) -> Outcome: ...


class Kind(NamedTuple):
    """How scripts of a kind are drawn and played; `files` is the beginning of the names of failed ones."""

    draw: Callable[[int], Script]
    play: Play
    files: str


KIND_OF = {SINGLE: Kind(draw, play, "seed"), CLUSTER: Kind(draw_cluster, play_cluster, "cluster-seed")}
