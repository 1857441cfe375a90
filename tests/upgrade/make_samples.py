"""Makes the sample data directories of `samples.SOURCES`, each with the broker of its commit.

python -m tests.upgrade.make_samples            those that do not exist
python -m tests.upgrade.make_samples NAME ...   these, again
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.broker_process import BrokerProcess
from tests.upgrade.sample_content import create
from tests.upgrade.samples import KILLED, SAMPLES, SETTINGS, SOURCES, STATES, Promised, SampleSource, save

from pybroker.local_store.data_directory import DIRECTORY_MARK_NAME

ROOT = Path(__file__).resolve().parents[2]
MAX_ARCHIVE_BYTES = 100 * 1024
_LEFT_OUT = frozenset({DIRECTORY_MARK_NAME})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.upgrade.make_samples", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(SOURCES)}")
    names: list[str] = parser.parse_args(arguments).names
    for name in names or [name for name in SOURCES if not (SAMPLES / name).exists()]:
        if name not in SOURCES:
            parser.error(f"There is no sample {name!r}: choose from {', '.join(SOURCES)}.")
        source = SOURCES[name]
        with TemporaryDirectory() as directory:
            tree = Path(directory) / "tree"
            _git("worktree", "add", "--quiet", "--detach", str(tree), source.commit)
            try:
                make(name, source, tree, Path(directory))
            finally:
                _git("worktree", "remove", "--force", str(tree))
    return 0


def make(name: str, source: SampleSource, tree: Path, directory: Path) -> None:
    """Make both archives with the broker in `tree`."""
    broker = BrokerProcess(directory, SETTINGS)
    del broker.settings["metricsPageIntervalMs"]  # The first commits do not know this key.
    broker.environment = {"PYTHONPATH": str(tree / "src")}
    promised = Promised(source.commit, sorted(source.features))
    for run, state in enumerate(STATES):
        broker.start()
        try:
            create(broker, source.features, promised, run)
        finally:
            if state == KILLED:
                broker.kill()
            else:
                broker.stop()
        save(promised, name, state)
        path = _pack(broker.data, name, state)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")


def _pack(data: Path, name: str, state: str) -> Path:
    path = SAMPLES / name / f"{state}.tar.xz"
    with tarfile.open(path, "w:xz", preset=9) as archive:
        for each in sorted(data.rglob("*")):
            if each.name not in _LEFT_OUT:
                archive.add(each, each.relative_to(data), recursive=False, filter=_without_owner)
    assert path.stat().st_size <= MAX_ARCHIVE_BYTES, f"{path} is too large for the repository"
    return path


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main())
