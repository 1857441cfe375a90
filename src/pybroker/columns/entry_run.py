"""Consecutive entries of one ledger in one buffer: the result of each transport and the input of the decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class EntryRun:
    """Stored entries of a ledger from `first_entry_id` on, without a copy of their bytes.

    Entry i is `data[starts[i] : starts[i] + lengths[i]]`: the client's bytes (`[0x0e01 crc32c] metadata_size
    MessageMetadata payload`), preceded by the broker's metadata (`0x0e02`) if it exists. The transport has verified
    position and storage checksum. The content comes from a client and is not verified.
    """

    ledger_id: int
    first_entry_id: int
    data: Buffer
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    hidden: npt.NDArray[np.bool_] | None = None
    """Entries that readers never receive (aborted messages, transaction markers). None: no such entries."""

    @property
    def entry_count(self) -> int:
        return len(self.starts)

    @property
    def end_entry_id(self) -> int:
        return self.first_entry_id + len(self.starts)
