"""Official clients in many processes and threads do everything at once, against pybroker and the reference broker.

  python -m tests.storm.run                                   all scenarios but the massive ones, on a fresh pybroker
  python -m tests.storm.run --reference                       the same on the reference broker too
  python -m tests.storm.run --only 'A*' --seed 7 --threads 30
  python -m tests.storm.run --only start500,return500         500 clients that start at once, and that come back
  python -m tests.storm.run --save FILE                       keeps the results of the (last) broker as JSON
  python -m tests.storm.run --table FILE FILE ...             the table of kept results, side by side
  python -m tests.storm.run --list

Exit code 1 when pybroker let a client time out, answered what nobody expects, or was not as it should be at rest. The reference
broker is started by the `baseline` script of --reference-dir; see docs/contributing/storm.md.
"""

import argparse
import contextlib
import fnmatch
import os
import signal
import sys
import tempfile
from pathlib import Path

from tests.storm import every_scenario
from tests.storm.brokers import our_broker, reference_broker
from tests.storm.outcomes import Results, notes, table
from tests.storm.scenario import Scenario
from tests.storm.storm import Size, run

REPOSITORY = Path(__file__).resolve().parents[2]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.storm.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="PATTERN,...")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=Size.processes)
    parser.add_argument("--threads", type=int, default=Size.threads, help="of each process")
    parser.add_argument("--rounds", type=int, default=Size.rounds)
    parser.add_argument("--timeout", type=int, default=Size.timeout_s, metavar="S", help="of an operation of a client")
    parser.add_argument("--reference", action="store_true", help="on the reference broker, too")
    parser.add_argument("--only-reference", action="store_true")
    default = os.environ.get("PYBROKER_REFERENCE_DIR", REPOSITORY.parent / "shared/baseline")
    parser.add_argument("--reference-dir", type=Path, default=Path(default), metavar="DIR")
    parser.add_argument("--save", type=Path, metavar="FILE")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="the data and the log of pybroker stay there")
    parser.add_argument("--list", action="store_true")
    return parser.parse_args(arguments)


def chosen(patterns: str) -> list[str]:
    """By patterns; without any all but the massive ones."""
    if not patterns:
        return [name for name, scenario in Scenario.ALL.items() if not scenario.is_massive]
    return [name for name in Scenario.ALL if any(fnmatch.fnmatch(name, one) for one in patterns.split(","))]


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    every_scenario.load()
    if options.table:
        kept = [Results.from_json(path.read_text()) for path in options.table]
        show(kept)
        return 0
    names = chosen(options.only)
    if options.list or not names:
        for name, scenario in Scenario.ALL.items():
            print(f"{name:<32} {scenario.__doc__}")
        return not names
    size = Size(options.processes, options.threads, options.rounds, options.timeout)
    all_results = []
    with contextlib.ExitStack() as stack:
        directory = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="storm-")))
        directory.mkdir(parents=True, exist_ok=True)
        if not options.only_reference:
            with our_broker(directory) as broker:
                all_results.append(run(broker, names, size, options.seed, tell))
        if options.reference or options.only_reference:
            with reference_broker(options.reference_dir) as reference:
                both = [name for name in names if not Scenario.ALL[name].is_ours]
                all_results.append(run(reference, both, size, options.seed, tell))
    if options.save:
        options.save.write_text(all_results[-1].to_json())
    show(all_results)
    return int(any(results.faults() for results in all_results if results.broker == "pybroker"))


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(all_results: list[Results]) -> None:
    print(table(all_results))
    for results in all_results:
        print(f"\n{results.broker}: {results.timeouts()} time-outs in {len(results.outcomes)} attempts")
        for line in notes(results):
            print(f"  {line}")
        for line in results.faults():
            print(f"  ! {line}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the broker is stopped all the same
    sys.exit(main(sys.argv[1:]))
