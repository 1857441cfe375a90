"""Consecutive entries of one ledger, where they lie in a buffer: what every way of reading yields and the decoder takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class EntryRun:
    """Entries `first_entry_id`, `first_entry_id` + 1, ... of ledger `ledger_id`, as they are stored, uncopied.

    Entry i is `data[starts[i] : starts[i] + lengths[i]]`: what the client sent (`[0x0e01 crc32c] metadata_size MessageMetadata
    payload`), with the broker's own metadata (`0x0e02`) in front of it where there is one. Its place and the checksum of the
    stored bytes were checked by who made the run; what the bytes hold was not: a client wrote them.
    """

    ledger_id: int
    first_entry_id: int
    data: Buffer
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    hidden: npt.NDArray[np.bool_] | None = None
    """Which of the entries readers never get (aborted messages, markers of transactions); None: none of them."""

    @property
    def entry_count(self) -> int:
        return len(self.starts)

    @property
    def end_entry_id(self) -> int:
        """The entry after the last one of the run."""
        return self.first_entry_id + len(self.starts)
