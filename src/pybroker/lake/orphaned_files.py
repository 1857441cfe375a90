"""Which files that no version of a table knows may be deleted."""

from __future__ import annotations

import re
from dataclasses import dataclass

MERGED_PREFIX = "merged"
"""Of files that hold rows of other files anew: no epoch, as maintenance may run beside whoever owns the lease."""


def file_prefix(pipeline: str, epoch: int) -> str:
    """What the name of each file begins with that is written in this epoch."""
    return f"{pipeline}.e{epoch}"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Of a pipeline that is in `epoch`.

    A file of an earlier epoch may go at once: whoever wrote it read the table before the present owner took it over, so its
    commit is refused for ever. Any other file may belong to a commit under way and goes by age alone.
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
        """The epoch in a file's name; None where it is none of this pipeline's files."""
        name = location.rpartition("/")[2]
        found = re.match(rf"(?:snap-\d+-0-)?{re.escape(self.pipeline)}\.e(\d+)\.", name)
        return int(found.group(1)) if found else None
