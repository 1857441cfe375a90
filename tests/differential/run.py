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
import importlib
import json
import os
import pathlib
import pkgutil
import secrets
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from benchmarks import brokers
from benchmarks.brokers import Broker
from tests import differential
from tests.differential import intended
from tests.differential.compare import Difference, differences
from tests.differential.harness import PROXY_SETTINGS, SCENARIOS, TRANSACTION_SETTINGS, Run, Scenario, security_settings

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
# Importing them registers their scenarios, in the order of their names.
for _theme in sorted(module.name for module in pkgutil.iter_modules(differential.__path__, "tests.differential.")):
    if _theme.startswith("tests.differential.scenarios_"):
        importlib.import_module(_theme)
SECRET = secrets.token_bytes(32)


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
    comparison = Comparison(options)
    groups: list[tuple[dict[str, str], Callable[[Scenario], bool]]] = [
        ({}, lambda each: not (each.is_secured or each.has_transactions or each.is_proxied)),
        (TRANSACTION_SETTINGS, lambda each: each.has_transactions),
        (PROXY_SETTINGS, lambda each: each.is_proxied),
        (security_settings(SECRET), lambda each: each.is_secured),
    ]
    for settings, belongs in groups:
        part = [each for each in chosen if belongs(each)]
        if not part:
            continue
        is_secured = part[0].is_secured
        if is_secured and (options.reference_at or options.pybroker_at):
            print(f"left out, as the running brokers do not know this run's tokens: {len(part)} scenarios")
            continue
        comparison.run(part, settings)
    return comparison.finish(chosen)


class Comparison:
    """Starts the brokers, runs scenarios on them and counts what is not as it should be."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._out: pathlib.Path | None = options.out
        self._count = 0
        self._unequal = 0
        self._used: set[intended.Intended] = set()

    def run(self, chosen: list[Scenario], settings: dict[str, str]) -> None:
        """Run scenarios that want the same settings."""
        with contextlib.ExitStack() as stack:
            reference = self._reference(stack, settings)
            if self._options.only_reference:
                for each in chosen:
                    print_trace(each, trace(each, reference, self._out))
                return
            ours = self._pybroker(stack, settings)
            with ThreadPoolExecutor(2) as both:
                for each in chosen:
                    pair = [both.submit(trace, each, broker, self._out) for broker in (ours, reference)]
                    self._compare(each, *(future.result() for future in pair))

    def _reference(self, stack: contextlib.ExitStack, settings: dict[str, str]) -> Broker:
        if self._options.reference_at:
            return Broker("reference", *self._options.reference_at)
        return stack.enter_context(brokers.started_reference(self._options.reference, settings=settings))

    def _pybroker(self, stack: contextlib.ExitStack, settings: dict[str, str]) -> Broker:
        if self._options.pybroker_at:
            return Broker("pybroker", *self._options.pybroker_at)
        own = dict(one.split("=", 1) for one in self._options.set)
        on_in_the_reference = {"webSocketServiceEnabled": "true"}
        return stack.enter_context(brokers.started_pybroker(settings={**on_in_the_reference, **settings, **own}))

    def _compare(self, each: Scenario, left: Run, right: Run) -> None:
        found = differences(*(((step.label, step.value) for step in run.steps) for run in (left, right)))
        meant = {one.path: intended.reason_for(each.name, one.path) for one in found}
        self._used |= {row for row in meant.values() if row is not None}
        unexplained = [one for one in found if meant[one.path] is None]
        self._count += 1
        self._unequal += bool(unexplained) or left.broke or right.broke
        report(each, unexplained, len(found) - len(unexplained), (left, right))

    def finish(self, chosen: list[Scenario]) -> int:
        """Say what came of it; the exit code."""
        if self._options.only_reference:
            return 0
        for row in intended.INTENDED:
            if row not in self._used and any(fnmatch.fnmatchcase(each.name, row.scenario) for each in chosen):
                print(f"no longer a difference: {row.scenario} {row.path} ({row.reason})")
                self._unequal += 1
        print(f"\n{self._count} scenarios, {self._unequal} with differences that are not intended")
        return 1 if self._unequal else 0


def trace(each: Scenario, broker: Broker, out: pathlib.Path | None) -> Run:
    """Run one scenario on one broker; one that breaks is a failure, also when it does so on both."""
    run = Run(broker, each.name, SECRET)
    with run:
        try:
            each.run(run)
        except Exception as error:  # noqa: BLE001 - a scenario that breaks is a result, the others go on
            run.broke = True
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
    if any(run.broke for run in runs):
        verdict = "BROKEN"
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
