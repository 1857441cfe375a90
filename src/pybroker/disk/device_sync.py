"""Sync of one file to the device on each system."""

from __future__ import annotations

import os

try:
    import fcntl
except ImportError:
    _FULL_SYNC = None  # on Windows
else:
    _FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)


def sync_to_device(descriptor: int) -> None:
    if _FULL_SYNC is not None:
        fcntl.fcntl(descriptor, _FULL_SYNC)
    else:
        os.fdatasync(descriptor)
