"""Rules for deleting orphaned files: files in the directory of a table that belong to no version of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

MERGED_PREFIX = "merged"
"""Prefix of the names of merged files.

It contains no epoch, because maintenance may run beside the owner of the lease.
"""


def file_prefix(pipeline: str, epoch: int) -> str:
    return f"{pipeline}.e{epoch}"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The rules for a pipeline whose current lease has the number `epoch`.

    A file of an earlier epoch may be deleted at once, because the commit of its writer will be rejected. Any other file
    may belong to a pending commit, and is deleted by age only.
    """

    pipeline: str
    epoch: int
    older_than_ms: int

    def may_go(self, location: str, changed_ms: int) -> bool:
        if changed_ms < self.older_than_ms:
            return True
        written_in = self.epoch_of(location)
        return written_in is not None and written_in < self.epoch

    def epoch_of(self, location: str) -> int | None:
        """Return the epoch in the name of a file; None for files of other writers."""
        name = location.rpartition("/")[2]
        found = re.match(rf"(?:snap-\d+-0-)?{re.escape(self.pipeline)}\.e(\d+)\.", name)
        return int(found.group(1)) if found else None
