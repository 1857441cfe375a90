"""A short storm: nobody times out, nobody gets an answer that nobody expects, and afterwards all is as it should be."""

from pathlib import Path

import pytest
from tests.storm import every_scenario
from tests.storm.brokers import our_broker
from tests.storm.run import chosen
from tests.storm.storm import Size, run

SHORT = Size(processes=2, threads=10, rounds=1)


@pytest.mark.long
def test_a_storm_leaves_nobody_waiting_and_nothing_behind(tmp_path: Path) -> None:
    every_scenario.load()
    with our_broker(tmp_path) as broker:
        results = run(broker, chosen(""), SHORT, seed=1)
    assert len({each.scenario for each in results.outcomes}) == len(chosen(""))
    assert not results.faults(), "\n".join(results.faults())
