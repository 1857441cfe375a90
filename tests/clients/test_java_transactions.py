"""Transactions by the official Java client: what is done in them, and how they end.

Needs what `test_java_client.py` needs. `JavaTransactions.java` makes all checks in one run and says a line of each.
"""

import pathlib
import subprocess

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.java import java_command

pytestmark = [pytest.mark.long, pytest.mark.java]

PROGRAM = pathlib.Path(__file__).with_name("JavaTransactions.java")
TIMEOUT_S = 240
KINDS = ["exclusive", "shared", "failover", "key_shared"]
CHECKS = [
    "commit",
    "abort",
    *(f"{what}_{kind}" for kind in KINDS for what in ("consume_transform_produce", "conflict")),
    "time_out",
    "batch",
    "cumulative",
]


@pytest.fixture(scope="module")
def outcomes(broker: BrokerProcess) -> dict[str, str]:
    """What the one run said of each check."""
    command = java_command(PROGRAM, broker.url, "persistent://public/default/java-transactions-")
    run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert run.returncode == 0, run.stderr
    lines = [line.partition(" ") for line in run.stdout.splitlines()]
    return {name: outcome for name, _, outcome in lines if name in CHECKS}


@pytest.mark.parametrize("check", CHECKS)
def test_the_java_client_finds_its_transactions_as_they_should_be(check: str, outcomes: dict[str, str]) -> None:
    assert outcomes.get(check) == "ok"
