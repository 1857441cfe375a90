"""The processes of a storm: started once, they take part in one scenario after the other."""

import multiprocessing
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from tests.storm import every_scenario
from tests.storm.scenario import Meeting, Place, Report, Scenario, Share

SCENARIO_TIMEOUT_S = 240.0

_meeting: Meeting | None = None  # of this process; barriers cannot be sent with a task


def _begin(meeting: Meeting) -> None:
    global _meeting  # noqa: PLW0603 - what a pool gives to its processes has no other place
    _meeting = meeting
    every_scenario.load()


def _take_part(place: Place, name: str, index: int) -> Report:
    assert _meeting is not None
    share = Share(place, name, index, _meeting)
    try:
        share.meet()  # so that each process takes one share
        Scenario.ALL[name].act(share)
    except Exception:  # noqa: BLE001 - the one who judges must hear of it
        share.find(f"process {index} failed: {traceback.format_exc()[-600:]}")
        _meeting.abort()
    finally:
        share.close()
    return share.report


class Workers:
    """So many processes that do the same scenario at once."""

    def __init__(self, pool: ProcessPoolExecutor, meeting: Meeting) -> None:
        self._pool = pool
        self._meeting = meeting

    def run(self, place: Place, name: str, meanwhile: Callable[[Meeting], None]) -> list[Report]:
        self._meeting.reset()
        shares = [self._pool.submit(_take_part, place, name, index) for index in range(place.processes)]
        meanwhile(self._meeting)
        return [share.result(SCENARIO_TIMEOUT_S) for share in shares]


@contextmanager
def workers(count: int) -> Iterator[Workers]:
    context = multiprocessing.get_context("spawn")  # the client's threads would not survive a fork
    meeting = Meeting(context.Barrier(count), context.Barrier(count + 1))
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(meeting,))
    try:
        yield Workers(pool, meeting)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
