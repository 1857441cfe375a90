"""`make simulate SEEDS=n SEED=s`: plays seeds, says how far it is, what was covered and what was found.

A seed that fails is shrunk, and written below `.simulate/` as a script that people can read and `--replay` plays again; once
mended, its line belongs into `failed_once.jsonl`, which `make test` plays.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.simulate.coverage import Coverage
from tests.simulate.kinds import CLUSTER, KIND_OF, SINGLE
from tests.simulate.outcome import Outcome
from tests.simulate.processes import played
from tests.simulate.script import Script
from tests.simulate.shrink import shrink

from pybroker.server.command_table import command_table
from pybroker.wire import pulsar_api_pb2 as pb

DIRECTORY = Path(".simulate")
HOLES_SHOWN = 40


class Totals:
    """Of all seeds so far."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.seeds = self.crashes = self.failed = 0
        self.virtual_s = self.took_s = 0.0
        self.coverage = Coverage()

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.crashes += outcome.crashes
        self.failed += bool(outcome.findings)
        self.virtual_s += outcome.virtual_s
        self.took_s += outcome.took_s
        self.coverage.add(outcome.commands, outcome.pairs)

    def line(self) -> str:
        passed_s = time.monotonic() - self.began_s
        coverage = self.coverage
        return (
            f"{self.seeds} seeds, {self.seeds / passed_s:.1f} a second ({self.took_s / 60:.1f} CPU minutes),"
            f" {self.virtual_s / 3600:.1f} virtual hours, {sum(coverage.commands.values())} commands,"
            f" {self.crashes} crashes, {coverage.share:.0%} of {len(coverage.possible())} pairs overlapped, {self.failed} failed"
        )

    def report(self, *, shows_all_holes: bool) -> str:
        coverage = self.coverage
        lines = [f"{count:8d} {name}" for name, count in sorted(coverage.commands.items())]
        known = {pb.BaseCommand.Type.Name(each) for each in command_table()} | {"SEND", "FLOW", "ACK"}
        lines.append(f"commands that were never sent: {', '.join(sorted(known - set(coverage.commands))) or 'none'}")
        holes = coverage.holes()
        lines.append(f"{len(holes)} pairs never overlapped:")
        shown = holes if shows_all_holes else holes[:HOLES_SHOWN]
        lines += [f"    {one} | {other}" for one, other in shown]
        if len(shown) < len(holes):
            lines.append(f"    and {len(holes) - len(shown)} more (--all-holes)")
        return "\n".join(lines)


def write_down(outcome: Outcome, shrink_s: float, kind: str) -> str:
    """Shrink what failed, keep it, and say how to see it again."""
    draw, play, files = KIND_OF[kind]
    script = draw(outcome.seed)
    if shrink_s > 0:
        script = shrink(script, lambda smaller: bool(play(smaller).kinds & outcome.kinds), shrink_s)
    findings = play(script).findings or outcome.findings
    DIRECTORY.mkdir(exist_ok=True)
    path = DIRECTORY / f"{files}-{outcome.seed}.json"
    found = [f"{rule}: {text}" for rule, text in findings]
    path.write_text(json.dumps({"found": found, "kind": kind, "script": json.loads(script.to_json())}) + "\n")
    said = [
        f"seed {outcome.seed} fails:",
        *(f"    {text[:400]}" for text in found),
        *(f"    {line}" for line in str(script).splitlines()),
    ]
    said.append(f"    again: python -m tests.simulate --replay {path}")
    return "\n".join(said)


def replay(path: Path, *, shows_history: bool) -> int:
    """Play a script that was written down."""
    written = json.loads(path.read_text())
    script = Script.from_json(json.dumps(written["script"]))
    print(script)
    outcome = KIND_OF[written.get("kind", SINGLE)].play(script, keeps_history=shows_history)
    print(*outcome.history, sep="\n")
    for rule, text in outcome.findings:
        print(f"{rule}: {text}")
    print(f"digest {outcome.digest}, {outcome.virtual_s:.1f} virtual seconds, {outcome.turns} turns")
    return 1 if outcome.findings else 0


def main() -> int:
    parser = argparse.ArgumentParser("simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--seconds", type=float, default=0, help="end after so long, however many seeds are left")
    parser.add_argument("--cluster", action="store_true", help="several brokers on simulated ZooKeeper and bookies")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--shrink-s", type=float, default=60, help="spent on making each failing script small")
    parser.add_argument("--most-failures", type=int, default=5, help="end after so many")
    parser.add_argument("--all-holes", action="store_true")
    parser.add_argument("--quiet", action="store_true", help="no list of commands and holes")
    parser.add_argument("--replay", type=Path, help="play a script that was written down")
    parser.add_argument("--history", action="store_true", help="with --replay: everything that happened, in order")
    options = parser.parse_args()
    if options.replay is not None:
        return replay(options.replay, shows_history=options.history)
    kind = CLUSTER if options.cluster else SINGLE
    totals, told_s = Totals(), time.monotonic()
    print(f"seeds from {options.seed} on", flush=True)
    for outcome in played(range(options.seed, options.seed + options.seeds), options.jobs, kind):
        totals.add(outcome)
        if outcome.findings:
            print(write_down(outcome, options.shrink_s, kind), flush=True)
        now_s = time.monotonic()
        if now_s - told_s > 5:
            told_s = now_s
            print(totals.line(), file=sys.stderr, flush=True)
        if totals.failed >= options.most_failures or (options.seconds and now_s - totals.began_s > options.seconds):
            break
    if not options.quiet:
        print(totals.report(shows_all_holes=options.all_holes))
    print(totals.line())
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
