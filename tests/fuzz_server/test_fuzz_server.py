"""A short run of `make fuzz-server`, and a broker that falls short is found out."""

from pathlib import Path

import pytest
from tests.fuzz_server.run import run

pytestmark = pytest.mark.long


def test_hostile_frames_and_requests_harm_nobody(tmp_path: Path) -> None:
    outcome = run(tmp_path, frames=20_000, requests=3_000, seed=1)
    assert not outcome.faults, "\n".join(outcome.lines())
    assert outcome.honest_messages > 50
    assert outcome.frames.answers["SEND_RECEIPT"]
    assert outcome.requests.answers["200"]
