"""What the C library keeps for the next batch, asked of a process of its own: the settings hold for all of it."""

import subprocess
import sys

import pytest

from pybroker.columns.freed_memory import keep_freed_memory

FAULTS_OF_A_BATCH = """
import resource, sys
from pybroker.columns.freed_memory import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def batch():
    return [bytes([1]) * (5 << 20) for _ in range(4)]  # more than the library would keep
batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    command = [sys.executable, "-c", FAULTS_OF_A_BATCH, how]
    return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of the C library of Linux")
def test_the_second_batch_needs_no_pages_of_the_system() -> None:
    assert faults("kept") < faults("as it was") / 10


def test_a_c_library_without_the_setting_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert not keep_freed_memory()
