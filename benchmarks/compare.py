"""pybroker beside Apache Pulsar, both under the load of pulsar-perf: `make bench-compare`.

    python -m benchmarks.compare                                         all cases, three rounds, about 25 minutes
    python -m benchmarks.compare --only 'publish*,paced_1k' --reps 5     some cases
    python -m benchmarks.compare --durability defaults                   Pulsar as it is shipped, without syncs

Both brokers run on this machine for the whole comparison and are loaded in turn (A B A B). Each cell of the table is
pybroker's figure divided by Pulsar's in the same round: the median of the rounds, and the lowest and highest ratio. The
documented ratios of docs/contributing/benchmarks.md follow; both brokers synced their journal there. Needs a JDK 17 or
newer, Maven, and Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.maven_jars import JarsMissing

from benchmarks import perf_cases
from benchmarks.brokers import Broker, durability_name, started_pybroker
from benchmarks.perf_cases import CASES, CPU, LABELS, P99, RATE, Figures, PerfFailed, Settings
from benchmarks.pulsar_standalone import require_java, started_standalone
from pybroker.process.python_build import python_build
from pybroker.wire import core

PAGE = Path(__file__).resolve().parents[1] / "docs/contributing/benchmarks.md"
SECTION = "## Beside Apache Pulsar"
COLUMNS = {CPU: "processor time", RATE: "rate", P99: "p99"}
DOCUMENTED = {CPU: "compiled to Pulsar", RATE: "rate, compiled to Pulsar", P99: "p99, compiled to Pulsar"}
"""Headings of the columns in the documentation."""
DURABILITIES = {"sync": (True, True), "defaults": (True, False), "nosync": (False, False)}
"""`journalSyncData` of pybroker and of Pulsar. `defaults` are the values that both are shipped with."""
SHORTEST_S = 6

DOCUMENTED_DURABILITY = "sync, sync"

Documented = dict[str, dict[str, str]]  # case -> figure -> ratio


def documented_ratios(page: str) -> Documented:
    """Return the ratios of the broker with the compiled core to Pulsar, from the tables of the documentation."""
    case_of = {label: case for case, label in LABELS.items()}
    found: Documented = {case: {} for case in CASES}
    columns: dict[str, int] = {}
    section = page.partition(f"{SECTION}\n")[2].partition("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]
        case = case_of.get(cells[0])
        if line.startswith("|---"):
            continue
        if case is None:
            columns = {figure: cells.index(head) for figure, head in DOCUMENTED.items() if head in cells}
        else:
            found[case] |= {figure: cells[column] for figure, column in columns.items()}
    return found


def ratio_cell(pairs: Iterable[tuple[Figures, Figures]], figure: str) -> str:
    """Return the median of the ratios of the rounds, with the lowest and the highest."""
    ratios = [ours[figure] / theirs[figure] for ours, theirs in pairs if figure in ours and theirs.get(figure)]
    if not ratios:
        return ""
    median = f"{statistics.median(ratios):.2f}"
    return median if len(ratios) == 1 else f"{median} ({min(ratios):.2f} to {max(ratios):.2f})"


def table(rounds: dict[str, list[tuple[Figures, Figures]]], durability: str, documented: Documented) -> str:
    columns = COLUMNS.values()
    lines = [
        f"| case | durability | {' | '.join(columns)} | rounds | documented: {', '.join(columns)} |",
        f"|---|---|{'---|' * (len(COLUMNS) + 2)}",
    ]
    for case, pairs in rounds.items():
        known = documented.get(case, {}) if durability == DOCUMENTED_DURABILITY else {}
        cells = [ratio_cell(pairs, figure) for figure in COLUMNS]
        stored = ", ".join(known.get(figure) or "-" for figure in COLUMNS)
        lines.append(f"| {case} | {durability} | {' | '.join(cells)} | {len(pairs)} | {stored} |")
    return "\n".join(lines)


def compare(
    brokers: tuple[Broker, Broker], chosen: list[str], options: argparse.Namespace
) -> dict[str, list[tuple[Figures, Figures]]]:
    """Load both brokers in turn until all rounds are done or the time is over."""
    settings = Settings(options.secs, options.backlog)
    deadline_s = time.monotonic() + options.max_minutes * 60
    for broker in brokers:  # a Java virtual machine is slow until it has compiled the hot path
        if options.warm:
            perf_cases.publish(broker, Settings(max(options.warm, SHORTEST_S), 0), "-s", "1024", "-db", "-o", "1000")
    rounds: dict[str, list[tuple[Figures, Figures]]] = {case: [] for case in chosen}
    for _ in range(options.reps):
        for case in chosen:
            if time.monotonic() > deadline_s:
                print(f"stopped after {options.max_minutes:g} minutes (--max-minutes)", flush=True)
                return rounds
            try:
                ours, theirs = (_measured(case, broker, settings, options.out) for broker in brokers)
            except PerfFailed as error:
                print(f"{case:<20} FAILED {error}", flush=True)
            else:
                rounds[case].append((ours, theirs))
    return rounds


def _measured(case: str, broker: Broker, settings: Settings, out: Path | None) -> Figures:
    figures = CASES[case](broker, settings)
    shown = " ".join(f"{name}={value:.2f}" for name, value in figures.items())
    print(f"{case:<20} {broker.name:<9} {broker.durability:<7} {shown}", flush=True)
    if out is not None:
        with out.open("a") as file:
            print(
                json.dumps({"case": case, "target": broker.name, "durability": broker.durability, **figures}), file=file
            )
    return figures


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="*", metavar="PATTERN,...", help=f"of {', '.join(CASES)}")
    parser.add_argument("--durability", choices=DURABILITIES, default="sync", help="journalSyncData (default: both)")
    parser.add_argument("--reps", type=int, default=3, help="rounds")
    parser.add_argument("--secs", type=int, default=9, help=f"seconds of load of each case, at least {SHORTEST_S}")
    parser.add_argument("--warm", type=int, default=10, help="seconds of load on each broker that do not count")
    parser.add_argument("--backlog", type=int, default=1_000_000, help="messages of the case catch_up")
    parser.add_argument("--max-minutes", type=float, default=40, help="start no further run after this time")
    parser.add_argument("--out", type=Path, help="append every run to this file, one JSON object a line")
    options = parser.parse_args(arguments)
    if options.secs < SHORTEST_S:
        parser.error(f"--secs must be at least {SHORTEST_S}: the first seconds do not count")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    chosen = [case for case in CASES if any(fnmatch.fnmatch(case, one) for one in options.only.split(","))]
    if not chosen:
        print(f"no case matches {options.only}; cases: {', '.join(CASES)}", file=sys.stderr)
        return 2
    try:
        require_java()
    except JarsMissing as error:
        print(f"bench-compare {error}", file=sys.stderr)
        return 2
    ours_sync, theirs_sync = DURABILITIES[options.durability]
    durability = f"{durability_name(ours_sync)}, {durability_name(theirs_sync)}"
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(started_pybroker(ours_sync))
        theirs = stack.enter_context(started_standalone(theirs_sync))
        rounds = compare((ours, theirs), chosen, options)
    build = f"CPython {sys.version.split()[0]} ({python_build()} build), wire core {core.IMPLEMENTATION}"
    print(f"\npybroker divided by Pulsar; {build}", end="")
    print(f", load average {', '.join(f'{value:.1f}' for value in os.getloadavg())}\n")
    print(table(rounds, durability, documented_ratios(PAGE.read_text())))
    return 0 if all(rounds.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
