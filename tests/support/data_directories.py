"""Copies of data directories for tests."""

import shutil
from pathlib import Path

from pybroker.local_store.data_directory import DIRECTORY_MARK_NAME


def copy_data_directory(source: Path, target: Path) -> Path:
    """Copy the directory of a broker that does not run, so that a broker starts with the copy even if the broker was killed."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(DIRECTORY_MARK_NAME))
    return target
