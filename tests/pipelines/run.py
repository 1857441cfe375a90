"""A query of Spark and lakes are killed at random for a while, with everything beside them; then what they wrote is judged.

  python -m tests.pipelines.run                       two minutes
  python -m tests.pipelines.run --seconds 600 --seed 8
  python -m tests.pipelines.run --keep DIR            keeps data, tables and logs there

Seeds that are even have Spark in a cluster of two executors. Exit code 1 when something was lost or doubled, a file or a lease was
left, or the broker's memory grew; see docs/contributing/storm.md.
"""

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.pipelines.soak import Soak


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.pipelines.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="of killing")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=int, default=200, help="messages per second of two producers together")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    options = parser.parse_args(arguments)
    begun_s = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - begun_s:7.1f} s  {text}", flush=True)

    # Everything that was started is ended on the way out.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        directory = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pipelines-")))
        directory.mkdir(parents=True, exist_ok=True)
        result = Soak(directory, options.seed, options.seconds, options.rate, tell).run()
    for text in result.violations:
        print(f"    {text}", flush=True)
    print(f"seed {options.seed}: {result.line()}", flush=True)
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
