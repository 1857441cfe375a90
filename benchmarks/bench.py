"""Loads one or more brokers in turn and prints one comparable line for each case.

    python -m benchmarks.bench                       starts `pybroker serve` on free ports and loads it
    python -m benchmarks.bench --reference DIR       and the reference broker that DIR's `baseline` script starts
    python -m benchmarks.bench --target A=pulsar://HOST:PORT[,PID[,DURABILITY]] --target B=...
                                                     brokers that run already

    python -m benchmarks.bench --only recovery,holes*   cases that kill and restart a separate pybroker; see restarts.py
    python -m benchmarks.bench --only 'hostile*'        cost of the worst input of each command; see hostile.py

Several brokers are loaded alternately (A B A B ...); ratios are relative to the last one. broker_cpu_us and
client_cpu_us are CPU microseconds per message of all threads; they need the broker's PID.
"""

import argparse
import contextlib
import fnmatch
import json
import pathlib
import statistics
import sys
from collections.abc import Callable
from functools import partial

from benchmarks import brokers, cases, hostile, hostile_commands, hostile_http, load, restarts
from benchmarks.brokers import Broker

HOSTILE = {**hostile_commands.ATTACKS, **hostile_http.ATTACKS}
Runs = dict[tuple[str, str], dict[str, list[float]]]  # (case, metric) -> target -> one value for each repetition


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=brokers.parse_target, action="append", default=[])
    parser.add_argument("--start", action="store_true", help="start pybroker beside the targets (default without one)")
    parser.add_argument("--reference", type=pathlib.Path, metavar="DIR", help="holds the `baseline` script")
    parser.add_argument("--only-reference", action="store_true", help="load the reference broker alone")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting for pybroker")
    parser.add_argument("--no-sync", action="store_true", help="journalSyncData=false for the brokers started here")
    parser.add_argument("--secs", type=float, default=8.0, help="measured seconds of a case")
    parser.add_argument("--reps", type=int, default=1)
    parser.add_argument("--warm", type=float, default=8.0, help="discarded seconds of load on each target first")
    parser.add_argument("--backlog", type=int, default=200_000, help="messages of the backlog in the catch-up cases")
    parser.add_argument("--entries", type=int, default=1_000_000, help="entries of the backlog in the case `recovery`")
    parser.add_argument(
        "--only",
        metavar="PATTERN,...",
        help=f"of {', '.join(cases.CASES)}; and not run by default {', '.join([*restarts.CASES, *HOSTILE])}",
    )
    parser.add_argument("--out", type=pathlib.Path, help="append every run to this file, one JSON object a line")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse_arguments(arguments)
    chosen = matching(list(cases.CASES), options.only or "*")
    restarting = matching(list(restarts.CASES), options.only or "")
    attacks = matching(list(HOSTILE), options.only or "")
    if not chosen and not restarting and not attacks:
        print(f"no case matches {options.only}", file=sys.stderr)
        return 2
    runs: Runs = {}
    failures = restart_cases(restarting, options, runs)
    failures += hostile_cases(attacks, options, runs)
    if chosen:
        failures += load_cases(chosen, options, runs)
    return 1 if failures else 0


def matching(names: list[str], patterns: str) -> list[str]:
    return [name for name in names if any(fnmatch.fnmatch(name, one) for one in patterns.split(","))]


def restart_cases(chosen: list[str], options: argparse.Namespace, runs: Runs) -> int:
    own = dict(one.split("=", 1) for one in options.set)
    settings = restarts.Settings(options.entries, not options.no_sync, own)
    target = Broker("pybroker", "", durability=brokers.durability_name(settings.is_synced))
    failures = 0
    for _ in range(options.reps):
        for case in chosen:
            failures += not run_case(case, target, partial(restarts.CASES[case], settings), runs, options.out)
    if chosen and options.reps > 1:
        print_medians(runs, [target])
    return failures


def hostile_cases(chosen: list[str], options: argparse.Namespace, runs: Runs) -> int:
    """Send the worst inputs to one new pybroker. Return the number of failures."""
    if not chosen:
        return 0
    failures = 0
    own = dict(one.split("=", 1) for one in options.set)
    with brokers.started_pybroker(not options.no_sync, own) as target:
        for _ in range(options.reps):
            for name in chosen:
                attack = HOSTILE[name]
                failures += not run_case(name, target, partial(hostile.measure, attack, target), runs, options.out)
    if options.reps > 1:
        print_medians(runs, [target])
    return failures


def load_cases(chosen: list[str], options: argparse.Namespace, runs: Runs) -> int:
    settings = cases.Settings(measure_s=options.secs, backlog_messages=options.backlog)
    sync = not options.no_sync
    with contextlib.ExitStack() as stack:
        targets: list[Broker] = []
        if options.start or not (options.target or options.only_reference):
            own = dict(one.split("=", 1) for one in options.set)
            targets.append(stack.enter_context(brokers.started_pybroker(sync, own)))
        targets += options.target
        if options.reference:
            targets.append(stack.enter_context(brokers.started_reference(options.reference, sync)))
        for target in targets:  # a JVM broker is slow until its hot path is compiled
            if options.warm > 0:
                warm_up(target, options.warm)
        failures = measure(targets, chosen, settings, options.reps, options.out, runs)
    if len(targets) > 1 or options.reps > 1:
        print_medians(runs, targets)
    return failures


def warm_up(target: Broker, seconds: float) -> None:
    settings = cases.Settings(measure_s=seconds)
    for case in ("publish_1k", "pubsub_1k"):
        try:
            cases.CASES[case](target, settings)
        except (load.LoadError, OSError) as error:
            print(f"warm-up {case} on {target.name}: {error}", file=sys.stderr, flush=True)


def measure(
    targets: list[Broker],
    chosen: list[str],
    settings: cases.Settings,
    reps: int,
    out: pathlib.Path | None,
    runs: Runs,
) -> int:
    failures = 0
    for _ in range(reps):
        for case in chosen:
            for target in targets:
                failures += not run_case(case, target, partial(cases.CASES[case], target, settings), runs, out)
    return failures


def run_case(case: str, target: Broker, run: Callable[[], cases.Figures], runs: Runs, out: pathlib.Path | None) -> bool:
    """Run one case once and print its results. Return False if it failed."""
    try:
        figures = run()
    except (load.LoadError, OSError) as error:
        print(f"{case:<27} {target.name:<12} FAILED {error}", flush=True)
        return False
    print(line_of(case, target, figures), flush=True)
    if out is not None:
        record = {"case": case, "target": target.name, "durability": target.durability, **figures}
        with out.open("a") as file:
            file.write(json.dumps(record) + "\n")
    for figure, value in figures.items():
        if value is not None:
            runs.setdefault((case, figure), {}).setdefault(target.name, []).append(value)
    return True


def line_of(case: str, target: Broker, figures: cases.Figures) -> str:
    cells = " ".join(f"{name}={number(value)}" for name, value in figures.items())
    return f"{case:<27} {target.name:<12} {target.durability:<7} {cells}"


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.2f}"


def print_medians(runs: Runs, targets: list[Broker]) -> None:
    reference = targets[-1].name
    first = targets[0].name
    names = " | ".join(f"{target.name} ({target.durability})" for target in targets)
    print(f"\n| case | figure | {names} | {first} / {reference} |\n|---|---|{'---|' * (len(targets) + 1)}")
    for (case, figure), by_target in runs.items():
        cells = []
        for target in targets:
            values = by_target.get(target.name)
            spread = f" ({number(min(values))}..{number(max(values))})" if values and len(values) > 1 else ""
            cells.append(number(statistics.median(values)) + spread if values else "-")
        ratio = "-"
        if (
            first != reference
            and first in by_target
            and by_target.get(reference)
            and statistics.median(by_target[reference])
        ):
            ratio = f"{statistics.median(by_target[first]) / statistics.median(by_target[reference]):.2f}"
        print(f"| {case} | {figure} | {' | '.join(cells)} | {ratio} |")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
