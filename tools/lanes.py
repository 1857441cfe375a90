"""Runs the test lanes. Each test file belongs to exactly one lane, and a run ends with a list of its lanes.

    python -m tools.lanes unit broker      the tests of two lanes, without tests that take minutes
    python -m tools.lanes long             the tests that take minutes, of all lanes
    python -m tools.lanes lint simulate    other checks of the project

Only `LANES` assigns directories to lanes. A lane, or a part of it, is skipped if its programs are missing on this
machine, and the list names the reason. All lanes run even if an earlier one fails; the exit code is 1 if one failed.
"""

from __future__ import annotations

import argparse
import codecs
import importlib.util
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ANALYTICS_UNITS = tuple(f"tests/unit/{name}" for name in ("columns", "lake", "pipelines", "reading", "spark"))
LANES: dict[str, tuple[str, ...]] = {
    "unit": (
        "tests/unit",
        "benchmarks",
        "tests/differential",
        "tests/churn",
        "tests/storm",
        "tests/fuzz_server",
    ),
    "broker": (
        "tests/protocol",
        "tests/crash",
        "tests/fuzz",
        "tests/simulate",
        "tests/embedding",
        "tests/zookeeper",
        "tests/bookkeeper",
    ),
    "clients": ("tests/clients", "tests/upgrade", "tests/console", "tests/examples"),
    "analytics": (*ANALYTICS_UNITS, "tests/pipelines", "tests/spark", "tests/tables"),
}
"""The directories of each lane of tests. A subdirectory may belong to another lane."""
LONG = "long"
LONG_MARK = "pytest.mark.long"
CLUSTER = "cluster"
"""The marker of long tests that no lane runs: `make test-cluster` does."""
BY_FILE = ("clients", LONG)
"""Lanes in which all tests of a file run in one process, because they share brokers and compiled clients."""
LONG_ALONE = ("tests/churn", "tests/storm")
"""Directories whose long tests measure short durations, so each runs alone. The other long tests run in parallel."""
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "lint": (
        ("ruff", "format", "--check", "."),
        ("ruff", "check", "."),
        ("mypy",),
    ),
    # The documentation site; a broken link or anchor is an error. `make docs` installs MkDocs.
    "docs": (("python", "-m", "mkdocs", "build", "--strict"),),
    "package": (("python", "-m", "tools.check_package"),),
    # All other lanes use the compiled core of `pybroker.wire`, if there is a C compiler.
    "pure": (("python", "-m", "tools.both_builds", "--build", "python", "--workers", "{workers}"),),
    # Fixed seeds that are known to pass. `make simulate` runs others.
    "simulate": (
        ("python", "-m", "tests.simulate", "--seed", "100000", "--seeds", "600", "--jobs", "{workers}", "--quiet"),
        (
            "python",
            "-m",
            "tests.simulate",
            "--cluster",
            "--seed",
            "1000",
            "--seeds",
            "20",
            "--jobs",
            "{workers}",
            "--quiet",
        ),
    ),
}
MARKERS = {"clients": ("java", "go", "promtool"), "analytics": ("spark", "java"), LONG: ("spark", "java", "go")}
"""For each lane, the test markers that need programs which a machine may lack. Other lanes have none."""
NO_TEST_SELECTED = 5
TEST_LIMIT_S = 600
"""A test that runs longer is ended with its process, and the stacks of all threads are printed."""
SILENT_S = 900.0
"""A command that prints nothing for this time is ended. It is longer than `TEST_LIMIT_S`."""
POLL_S = 1.0
LONGEST_LINE = 10_000
"""Maximum length of the last line of an output, in characters."""
COUNTED = re.compile(r"(\d+) (passed|failed|errors?|skipped|deselected)\b")
LEAST_JAVA = 17


@dataclass(slots=True)
class Outcome:
    """The result of one lane."""

    lane: str
    is_failed: bool = False
    took_s: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    """Skipped parts and the reasons."""

    def line(self) -> str:
        result = "FAILED" if self.is_failed else "ok"
        counted = ", ".join(f"{count} {word}" for word, count in self.counts.items() if word != "deselected")
        texts = [
            f"{self.lane:10} {result:6} {self.took_s:6.0f} s",
            counted,
            *(f"skipped {text}" for text in self.skipped),
        ]
        return "  ".join(text for text in texts if text)


def lane_of(path: str) -> str:
    owners = {
        directory: lane
        for lane, directories in LANES.items()
        for directory in directories
        if path == directory or path.startswith(directory + "/")
    }
    return owners[max(owners, key=len, default="")]


def arguments_of(lane: str) -> list[str]:
    own = [directory for directory in LANES[lane] if (ROOT / directory).is_dir()]
    others = [directory for name, directories in LANES.items() if name != lane for directory in directories]
    inside = [other for other in others if any(other.startswith(directory + "/") for directory in own)]
    return [*own, *(f"--ignore={directory}" for directory in inside)]


def files_with_long_tests() -> list[str]:
    """Return the files with tests that are marked as long, without those of `LONG_ALONE`. Importing all test files in
    each test process would take minutes.
    """
    names = [
        str(path.relative_to(ROOT))
        for directory in ("tests", "benchmarks")
        for path in sorted((ROOT / directory).rglob("test_*.py"))
        if LONG_MARK in path.read_text(encoding="utf-8")
    ]
    return [name for name in names if not name.startswith(LONG_ALONE)]


def missing_programs(markers: Collection[str], jars: Path) -> dict[str, str]:
    missing = {}
    if "spark" in markers:
        if importlib.util.find_spec("pyspark") is None:
            missing["spark"] = "PySpark is not installed (make .venv/.installed-spark)"
        elif java_version() < LEAST_JAVA:
            missing["spark"] = f"Java {LEAST_JAVA} or newer is not on the PATH"
    if "java" in markers and not jars.exists():
        missing["java"] = f"the jars of the Java client are not there: {jars} (baseline setup)"
    if "promtool" in markers and shutil.which("promtool") is None:
        missing["promtool"] = "the promtool command of Prometheus is not on the PATH"
    if "go" in markers:
        if shutil.which("go") is None:
            missing["go"] = "the go command is not on the PATH"
        elif subprocess.run(
            ["go", "mod", "download"], cwd=ROOT / "tests/clients/go", check=False, capture_output=True
        ).returncode:
            missing["go"] = "the Go client cannot be fetched"
    return missing


def java_version() -> int:
    if shutil.which("java") is None:
        return 0
    told = subprocess.run(["java", "-version"], check=False, capture_output=True, text=True).stderr
    found = re.search(r'version "(\d+)', told)
    return int(found[1]) if found else 0


def run_tests(lane: str, workers: int, missing: dict[str, str], more: Iterable[str]) -> Outcome:
    outcome = Outcome(lane)
    is_long = lane == LONG
    # After the loss of a test process, the distribution by files repeats the test or waits for ever: the run ends.
    parallel = ["-n", str(workers), "--max-worker-restart=0", *(["--dist", "loadfile"] if lane in BY_FILE else [])]
    limits = ["-o", f"faulthandler_timeout={TEST_LIMIT_S}", "-o", "faulthandler_exit_on_timeout=true"]
    own = ["long", f"not {CLUSTER}"] if is_long else ["not long"]
    chosen = " and ".join([*own, *(f"not {marker}" for marker in missing)])
    parts = [[*parallel, *(files_with_long_tests() if is_long else arguments_of(lane))]]
    if is_long:
        parts.insert(0, ["-n", "0", *LONG_ALONE])
    for part in parts:
        last = run_and_show(
            [sys.executable, "-m", "pytest", *part, *limits, "-m", chosen, *more],
            outcome,
            is_fine=(0, NO_TEST_SELECTED),
        )
        for count, word in COUNTED.findall(last):
            outcome.counts[word] = outcome.counts.get(word, 0) + int(count)
    outcome.skipped = [
        f"tests marked {marker}: {missing[marker]}" for marker in MARKERS.get(lane, ()) if marker in missing
    ]
    return outcome


def run_and_show(command: list[str], outcome: Outcome, *, is_fine: tuple[int, ...]) -> str:
    """Run `command`, print its output as it comes, and return the last line of the output.

    Record a failure in `outcome` if the exit code is not one of `is_fine`, or if the command prints nothing for
    `SILENT_S`: it is ended then. Processes that the command has left behind may keep the output open, so only the end
    of the command itself counts.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    end = ""
    started_s = last_output_s = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        pipe = process.stdout.fileno()
        while True:
            has_ended = process.poll() is not None
            if select.select([pipe], [], [], 0 if has_ended else POLL_S)[0]:
                part = os.read(pipe, 1 << 16)
                if not part:
                    break
                text = decoder.decode(part)
                end = (end + text)[-LONGEST_LINE:]
                sys.stdout.write(text)
                sys.stdout.flush()
                last_output_s = time.monotonic()
            elif has_ended:
                break
            elif time.monotonic() - last_output_s > SILENT_S:
                process.kill()
                sys.stdout.write(f"\n{command[0]} printed nothing for {SILENT_S:g} s and was ended\n")
                outcome.is_failed = True
                break
    outcome.is_failed |= process.returncode not in is_fine
    outcome.took_s += time.monotonic() - started_s
    lines = [line for line in end.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def run_commands(lane: str, workers: int) -> Outcome:
    outcome = Outcome(lane)
    for command in COMMANDS[lane]:
        program, *arguments = (word.format(workers=workers) for word in command)
        run_and_show([str(Path(sys.executable).with_name(program)), *arguments], outcome, is_fine=(0,))
    return outcome


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.lanes", description="Run test lanes and list them at the end."
    )
    parser.add_argument("lanes", nargs="+", choices=[*COMMANDS, *LANES, LONG])
    parser.add_argument("--workers", type=int, default=2, help="test processes that run in parallel")
    options, more = parser.parse_known_args(arguments)
    home = Path(os.environ.get("PULSAR_BASELINE_HOME", Path.home() / ".cache" / "pulsar-baseline"))
    is_test = any(lane not in COMMANDS for lane in options.lanes)
    missing = missing_programs({*chain(*(MARKERS.get(lane, ()) for lane in options.lanes))}, home / "tools" / "cp.txt")
    outcomes = []
    for lane in options.lanes:
        sys.stdout.write(f"\n=== lane {lane}\n")
        sys.stdout.flush()
        is_command = lane in COMMANDS
        outcomes.append(
            run_commands(lane, options.workers) if is_command else run_tests(lane, options.workers, missing, more)
        )
    sys.stdout.write("\nLanes of this run:\n" + "".join(f"  {outcome.line()}\n" for outcome in outcomes))
    not_run = [lane for lane in (*COMMANDS, *LANES, LONG) if lane not in options.lanes]
    if not_run:
        sys.stdout.write(f"Lanes that were not asked for: {', '.join(not_run)}\n")
    totals = [sum(outcome.counts.get(word, 0) for outcome in outcomes) for word in ("passed", "failed", "skipped")]
    totals[1] += sum(outcome.counts.get(word, 0) for outcome in outcomes for word in ("error", "errors"))
    if is_test:
        sys.stdout.write(f"Total: {totals[0]} passed, {totals[1]} failed, {totals[2]} skipped\n")
    return int(any(outcome.is_failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
