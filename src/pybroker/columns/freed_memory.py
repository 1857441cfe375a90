"""Memory of batches that were passed on serves the next ones, in a process that does little else than decode.

A batch is some buffers of MiB, which the C library takes from the system and gives back each time: of 1 GiB of messages, 70,000
pages were cleared and mapped anew, a sixth of the time that decoding took.
"""

from __future__ import annotations

import ctypes

KEPT_BYTES = 64 << 20
"""Of freed memory that stays with the process, at most, at the end of its heap."""
_OWN_MAPPING_BYTES = 32 << 20
"""Blocks from this size on are the system's, as before: the largest that the C library takes for this."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h."""


def keep_freed_memory() -> bool:
    """Ask the C library for it; False where it has no such setting, and everything stays as it was."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _OWN_MAPPING_BYTES)) and bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES))
