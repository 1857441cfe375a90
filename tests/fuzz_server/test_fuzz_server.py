"""A short run of `make fuzz-server`, and brokers with planted bugs, which a run must find."""

from pathlib import Path

import pytest
from tests.fuzz_server.planted import BUGS
from tests.fuzz_server.run import Counts, run


@pytest.mark.long
def test_hostile_frames_and_requests_harm_nobody(tmp_path: Path) -> None:
    counts = Counts(frames=20_000, requests=3_000, sessions=800, headers=300, tokens=300, logins=1000)
    outcome = run(tmp_path, counts, seed=1)
    assert not outcome.faults, "\n".join(outcome.lines())
    assert outcome.honest_messages > 50
    tallies = outcome.tallies
    assert tallies["frames"].answers["SEND_RECEIPT"]
    assert tallies["requests"].answers["200"]
    assert tallies["handshakes"].answers["101"]
    assert tallies["sessions"].answers["101"]
    assert tallies["sessions"].kinds["valid session"]
    assert tallies["headers"].answers["CONNECTED"]
    assert tallies["tokens"].answers["CONNECTED"]
    assert tallies["tokens"].answers["401"]
    assert tallies["logins"].answers["302"]
    assert tallies["logins"].kinds["session after logout"]


@pytest.mark.cluster
@pytest.mark.parametrize("bug", BUGS)
def test_run_finds_planted_bug(tmp_path: Path, bug: str) -> None:
    planted = BUGS[bug]
    outcome = run(tmp_path, Counts(**planted.counts), seed=1, bug=bug)
    assert any(planted.sign in fault for fault in outcome.faults), "\n".join(outcome.lines())
