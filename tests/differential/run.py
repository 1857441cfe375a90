"""Run the scenarios against pybroker and the reference broker and compare their traces.

  python -m tests.differential.run                      all scenarios; exit code 1 when a difference is not intended
  python -m tests.differential.run --only 'rest_*'      some
  python -m tests.differential.run --list               what there is
  python -m tests.differential.run --intended           the table of intended differences, as Markdown

The reference broker is started by the `baseline` script in --reference, else in $PYBROKER_REFERENCE_DIR, else in
../shared/baseline beside the repository; it needs Java 17 and, once, Maven.
"""

import argparse
import contextlib
import fnmatch
import json
import os
import pathlib
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

from benchmarks import brokers
from benchmarks.brokers import Broker
from tests.differential import intended, scenarios_messaging, scenarios_protocol, scenarios_rest
from tests.differential.compare import Difference, differences
from tests.differential.harness import SCENARIOS, Run, Scenario

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
THEMES = (scenarios_messaging, scenarios_protocol, scenarios_rest)  # importing them registers their scenarios


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.differential.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = os.environ.get("PYBROKER_REFERENCE_DIR", REPOSITORY.parent / "shared/baseline")
    parser.add_argument("--reference", type=pathlib.Path, default=pathlib.Path(default), metavar="DIR")
    parser.add_argument("--only", default="*", metavar="PATTERN,...")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--intended", action="store_true")
    parser.add_argument(
        "--out", type=pathlib.Path, metavar="DIR", help="keep every trace there, as the brokers said it"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting for pybroker")
    running = "use a broker that runs already: pulsar://HOST:PORT,http://HOST:PORT"
    parser.add_argument("--pybroker-at", type=parse_running, metavar="URLS", help=running)
    parser.add_argument("--reference-at", type=parse_running, metavar="URLS", help=running)
    parser.add_argument("--only-reference", action="store_true", help="print the reference's traces, compare nothing")
    return parser.parse_args(arguments)


def parse_running(text: str) -> tuple[str, str]:
    service_url, http_url = text.split(",")
    return service_url, http_url


def main(arguments: list[str]) -> int:
    options = parse_arguments(arguments)
    patterns = options.only.split(",")
    chosen = [each for each in SCENARIOS.values() if any(fnmatch.fnmatch(each.name, one) for one in patterns)]
    if options.intended:
        print(intended.markdown())
        return 0
    if options.list:
        for each in chosen:
            print(f"{each.name:<40} {each.purpose.splitlines()[0]}")
        return 0
    if not chosen:
        print(f"no scenario matches {options.only}", file=sys.stderr)
        return 2
    with contextlib.ExitStack() as stack:
        reference = _reference(options, stack)
        if options.only_reference:
            for each in chosen:
                print_trace(each, trace(each, reference, options.out))
            return 0
        ours = _pybroker(options, stack)
        return compare_all(chosen, ours, reference, options.out)


def _reference(options: argparse.Namespace, stack: contextlib.ExitStack) -> Broker:
    if options.reference_at:
        return Broker("reference", *options.reference_at)
    return stack.enter_context(brokers.started_reference(options.reference))


def _pybroker(options: argparse.Namespace, stack: contextlib.ExitStack) -> Broker:
    if options.pybroker_at:
        return Broker("pybroker", *options.pybroker_at)
    settings = dict(one.split("=", 1) for one in options.set)
    return stack.enter_context(brokers.started_pybroker(settings=settings))


def compare_all(chosen: list[Scenario], ours: Broker, reference: Broker, out: pathlib.Path | None) -> int:
    unequal = 0
    used: set[intended.Intended] = set()
    with ThreadPoolExecutor(2) as both:
        for each in chosen:
            pair = [both.submit(trace, each, broker, out) for broker in (ours, reference)]
            left, right = (future.result() for future in pair)
            found = differences(*(((step.label, step.value) for step in run.steps) for run in (left, right)))
            meant = {each_found.path: intended.reason_for(each.name, each_found.path) for each_found in found}
            used |= {row for row in meant.values() if row is not None}
            unexplained = [one for one in found if meant[one.path] is None]
            unequal += bool(unexplained)
            report(each, unexplained, len(found) - len(unexplained), (left, right))
    names = {each.name for each in chosen}
    for row in intended.INTENDED:
        if row not in used and any(fnmatch.fnmatchcase(name, row.scenario) for name in names):
            print(f"no longer a difference: {row.scenario} {row.path} ({row.reason})")
            unequal += 1
    print(f"\n{len(chosen)} scenarios, {unequal} with differences that are not intended")
    return 1 if unequal else 0


def trace(each: Scenario, broker: Broker, out: pathlib.Path | None) -> Run:
    """Run one scenario on one broker; what breaks the scenario itself is its last step."""
    run = Run(broker, each.name)
    with run:
        try:
            each.run(run)
        except Exception as error:  # noqa: BLE001 - a scenario that breaks is a result, the others go on
            run.step("the scenario broke", f"{type(error).__name__}: {error}")
            at = traceback.format_exc(limit=-2)
            print(f"{each.name} on {broker.name} broke:\n{at}", file=sys.stderr, flush=True)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        steps = [{"step": step.label, "compared": step.value, "said": step.raw} for step in run.steps]
        pathlib.Path(out, f"{each.name}.{broker.name}.json").write_text(json.dumps(steps, indent=1, default=str))
    return run


def report(each: Scenario, unexplained: list[Difference], intended_count: int, runs: tuple[Run, Run]) -> None:
    verdict = f"{len(unexplained)} DIFFERENCES" if unexplained else "equal"
    note = f", {intended_count} intended" if intended_count else ""
    print(f"{each.name:<40} {len(runs[1].steps):>3} steps  {verdict}{note}", flush=True)
    for one in unexplained:
        print(
            f"    {one.path}\n        pybroker:  {json.dumps(one.ours)}\n        reference: {json.dumps(one.reference)}"
        )


def print_trace(each: Scenario, run: Run) -> None:
    print(f"\n=== {each.name}: {each.purpose.splitlines()[0]}")
    for step in run.steps:
        print(f"  {step.label}: {json.dumps(step.value)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
