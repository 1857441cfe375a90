"""The reference broker (Apache Pulsar), for tests that need only its addresses."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from benchmarks.brokers import started_reference

REPOSITORY = Path(__file__).resolve().parents[2]
SETTINGS = {
    "brokerDeduplicationEnabled": "true",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "managedLedgerMaxEntriesPerLedger": "50",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}


@dataclass(frozen=True)
class Reference:
    """The addresses, named as for the tests of pybroker."""

    url: str
    http_url: str


@contextmanager
def reference_broker(settings: Mapping[str, str] = SETTINGS) -> Iterator[Reference]:
    """Start a reference broker for the block. Skips the test with the reason if that is not possible."""
    script_directory = Path(os.environ.get("PYBROKER_REFERENCE_DIR", REPOSITORY.parent / "shared/baseline"))
    home = Path(os.environ.get("PULSAR_BASELINE_HOME", Path.home() / ".cache/pulsar-baseline"))
    if shutil.which("java") is None:
        pytest.skip("the reference broker needs Java 17 on the PATH")
    if not (script_directory / "baseline").exists():
        pytest.skip(
            f"no reference broker: PYBROKER_REFERENCE_DIR must name the directory of its script ({script_directory})"
        )
    if not (home / "server/cp.txt").exists():
        pytest.skip(f"the reference broker's jars are not in {home}: run `baseline setup`, or set PULSAR_BASELINE_HOME")
    with started_reference(script_directory, journal_sync_data=False, settings=settings) as broker:
        assert broker.http_url is not None
        yield Reference(broker.service_url, broker.http_url)
