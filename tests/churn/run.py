"""Consumers of each type join, leave, stall and are killed for a while; then it is judged what they saw.

  python -m tests.churn.run                        a minute of each case
  python -m tests.churn.run --seconds 10 --only 'Key_*' --seed 7
  python -m tests.churn.run --keep DIR             keeps traces and logs there

Exit code 1 when a promise was broken: order, loss, two holders, or what was acknowledged coming again.
"""

import argparse
import contextlib
import fnmatch
import sys
import tempfile
from pathlib import Path

from tests.churn.harness import CASES, run


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.churn.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of each case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="*", metavar="PATTERN,...", help=f"of {', '.join(CASES)}")
    parser.add_argument("--rate", type=int, default=400, help="messages per second of each of two producers")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    options = parser.parse_args(arguments)
    names = [name for name in CASES if any(fnmatch.fnmatch(name, one) for one in options.only.split(","))]
    if not names:
        parser.error(f"no case matches {options.only}")
    broken = 0
    with contextlib.ExitStack() as stack:
        parent = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="churn-")))
        for name in names:
            result = run(CASES[name], options.seconds, options.seed, parent / name, options.rate)
            print(result.line(name), flush=True)
            for text in result.findings.violations:
                print(f"    {text}", flush=True)
            broken += bool(result.findings.violations)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
