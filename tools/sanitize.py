"""Runs the compiled core of `pybroker.wire` under the address and undefined-behaviour sanitizers: `make sanitize`.

1. `tests/fuzz/frames_harness.c` reads mutated frames, each in memory of exactly its size. It needs no Python.
2. The Python module is compiled with the sanitizers into a copy of `src`, and `tests/fuzz/test_wire_core.py` compares it
   with pure Python for other seeds.

The sanitizers end the process at the first error; the exit code is then 1. Needs GCC or Clang on Linux.
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIRE = Path("pybroker") / "wire"
FLAGS = [
    "-g",
    "-O1",
    "-std=c11",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
]
VARIANTS: tuple[list[str], ...] = ([], ["-DPYBROKER_SOFTWARE_CRC32C"])
"""The module as it is, and as it is on a processor without SSE4.2."""
FRAMES_PER_RUN = 5_000_000
STREAMS_PER_RUN = 20_000


def compiler() -> str:
    found = shutil.which(os.environ.get("CC", "cc"))
    if found is None:
        raise SystemExit("There is no C compiler: install GCC or Clang, or set CC")
    return found


def write_corpus(path: Path) -> None:
    """Write the frames of the fuzz test, and entries as bookies store them."""
    from tests.fuzz.test_wire_core import FRAMES  # noqa: PLC0415

    from pybroker.bookkeeper.protocol.entry_format import DigestType, EntryFormat  # noqa: PLC0415

    entry = EntryFormat(7, DigestType.CRC32C, b"", None).pack(7, 6, 1000, b"payload")
    frames = [*(frame for frame in FRAMES if len(frame) < 2000), *[entry] * 50]
    path.write_bytes(b"".join(struct.pack(">I", len(frame)) + frame for frame in frames))


def run_harness(directory: Path, seed: int, until_s: float, more: Sequence[str]) -> None:
    harness, corpus = directory / "frames_harness", directory / "corpus"
    write_corpus(corpus)
    source = ROOT / "tests" / "fuzz" / "frames_harness.c"
    subprocess.run([compiler(), *FLAGS, *more, source, "-o", harness], check=True)
    while True:
        print(" ".join(["harness", *more, f"seed {seed}: "]), end="", flush=True)
        subprocess.run([harness, corpus, str(seed), str(FRAMES_PER_RUN)], check=True)
        seed += 1
        if time.monotonic() >= until_s:
            return


def run_comparison(directory: Path, seed: int, until_s: float, more: Sequence[str]) -> None:
    """Compare a module with sanitizers and pure Python. Each bytes object has its own memory, with redzones around it."""
    source = directory / "src"
    if not source.exists():
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    include = sysconfig.get_paths()["include"]
    module = ["-shared", "-fPIC", "-DPy_LIMITED_API=0x030B0000", f"-I{include}", str(source / WIRE / "_core.c")]
    subprocess.run([compiler(), *FLAGS, *more, *module, "-o", source / WIRE / "_core.abi3.so"], check=True)
    runtimes = [
        subprocess.run(
            [compiler(), f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = os.environ | {
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": f"{source}{os.pathsep}{ROOT}",
    }
    while True:
        command = [sys.executable, "-m", "tests.fuzz.test_wire_core", str(seed), str(STREAMS_PER_RUN)]
        subprocess.run(command, check=True, env=environment, cwd=directory)
        print(" ".join(["comparison", *more, f"seed {seed}: {STREAMS_PER_RUN} streams"]), flush=True)
        seed += 1
        if time.monotonic() >= until_s:
            return


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.sanitize", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of each of both parts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pybroker-sanitize-") as name:
        try:
            for part in (run_harness, run_comparison):
                for more in VARIANTS:
                    part(Path(name), options.seed, time.monotonic() + options.seconds / len(VARIANTS), more)
        except subprocess.CalledProcessError as error:
            print(f"FAILED: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
