"""Suites as users write them pass with the plug-in, in a process and a directory of their own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run_pytest(directory: Path, *arguments: str) -> str:
    """What the suite in `directory` has printed; it must have passed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PULSAR"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["one process", "two of xdist"])
def test_the_suite_of_a_shop_passes(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    shutil.copytree(HERE / "orders", tmp_path / "orders")
    assert re.search(r"\b6 passed", run_pytest(tmp_path / "orders", *arguments))


def test_the_suite_runs_under_unittest_alone(tmp_path: Path) -> None:
    shutil.copytree(HERE / "orders", tmp_path / "orders")
    done = subprocess.run(
        [sys.executable, "-m", "unittest", "-q", "test_orders.OrdersTestCase"],
        cwd=tmp_path / "orders",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Ran 1 test" in done.stderr
