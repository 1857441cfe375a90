"""Seeds played in several processes at once.

A module of its own: a process that is spawned does not find what stands in `__main__`.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from tests.simulate.kinds import KIND_OF, SINGLE
from tests.simulate.outcome import Outcome

SEEDS_AT_ONCE = 20
SEEDS_OF_A_PROCESS = 600


def play_seeds(seeds: list[int], kind: str = SINGLE) -> list[Outcome]:
    """In a process of its own."""
    played = KIND_OF[kind]
    found = [played.play(played.draw(seed)) for seed in seeds]
    gc.collect()  # a simulation is full of circles, and nothing is collected while one turns
    return found


def played(seeds: Iterable[int], jobs: int, kind: str = SINGLE) -> Iterator[Outcome]:
    """Outcomes as they come."""
    chunks = _chunks(seeds)
    if jobs <= 1:
        for chunk in chunks:
            yield from play_seeds(chunk, kind)
        return
    context = multiprocessing.get_context("spawn")
    most_chunks = SEEDS_OF_A_PROCESS // SEEDS_AT_ONCE
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=most_chunks) as pool:
        running: set[Future[list[Outcome]]] = set()
        for chunk in chunks:
            running.add(pool.submit(play_seeds, chunk, kind))
            if len(running) >= jobs + 1:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield from future.result()
        for future in running:
            yield from future.result()


def _chunks(seeds: Iterable[int]) -> Iterator[list[int]]:
    chunk: list[int] = []
    for seed in seeds:
        chunk.append(seed)
        if len(chunk) == SEEDS_AT_ONCE:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
