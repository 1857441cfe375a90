"""Selection of the compiled core of `wire`, if it can be used, or of pure Python. No other module selects.

`_core.c` is compiled at installation if a C compiler is available. It decides the usual encodings; for any other input it
calls the Python functions or leaves the frame to the Python decoder. The Python code stays complete and defines each
result. `PYBROKER_PURE_PYTHON=1` in the environment selects pure Python. `tests/fuzz/test_wire_core.py` compares both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

PURE_PYTHON_VARIABLE = "PYBROKER_PURE_PYTHON"
_INTERFACE_VERSION = 2
"""Changes with the arguments and results of `_core`, so that a module of an older checkout is not used."""


class FrameScanner(Protocol):
    """The scanner of received frames. Each function returns None if the frame at `pos` is incomplete, or if only the
    Python decoder handles it.
    """

    def scan_sends(
        self, data: bytes | memoryview, pos: int, max_frame_bytes: int, max_batch_messages: int, /
    ) -> tuple[int, int, int, list[int], list[int], list[int], list[bytes]] | None:
        """Scan consecutive SENDs of one producer, up to one that only the Python decoder handles, and verify their
        checksums.

        Return the size of the frames in bytes, the producer id, the size of the messages in bytes, and four parallel
        lists: sequence ids, highest sequence ids (0 for none), numbers of messages, and messages.
        """

    def scan_acks(
        self, data: bytes, pos: int, max_frame_bytes: int, max_commands: int, /
    ) -> tuple[int, int, int, list[tuple[int, list[int]]]] | None:
        """Scan up to `max_commands` consecutive individual ACKs of whole entries by one consumer, without receipt.

        Return the size of the frames in bytes, the number of commands, the consumer id, and (ledger id, entry ids) in
        the order sent.
        """

    def scan_flow(self, data: bytes, pos: int, max_frame_bytes: int, /) -> tuple[int, int] | None:
        """Scan one FLOW. Return the consumer id and the permits."""


class Core(FrameScanner, Protocol):
    """The compiled module. The functions with the argument `decide` return one value per entry, and call `decide` for
    entries whose metadata only the Python code handles.
    """

    INTERFACE_VERSION: int
    CRC32C: str
    """The implementation of CRC32C that this processor runs: `sse4.2` or `software`."""

    def send_receipts(
        self,
        producer_id: int,
        sequence_ids: list[int],
        highest_sequence_ids: list[int],
        ledger_id: int,
        first_entry_id: int,
        /,
    ) -> bytes: ...

    def messages(
        self,
        consumer_id: int,
        ledger_id: int,
        entry_ids: Sequence[int],
        payloads: list[bytes],
        redelivery_counts: list[int] | None,
        ack_sets: list[list[int] | None] | None,
        consumer_epoch: int,
        partition: int,
        /,
    ) -> tuple[list[bytes], int, int]: ...

    def key_hashes(self, decide: Callable[[bytes], int], entries: list[bytes], /) -> list[int]: ...
    def deliver_at_times(self, decide: Callable[[bytes], int], entries: list[bytes], /) -> list[int]: ...
    def message_counts(self, decide: Callable[[bytes], int], entries: list[bytes], /) -> list[int]: ...
    def markers(self, decide: Callable[[bytes], bool], entries: list[bytes], /) -> list[bool]: ...
    def chunks(self, decide: Callable[[bytes], Any], entries: list[bytes], /) -> list[Any]: ...

    def pack_ledger_add(
        self,
        head: bytes,
        ledger_id: int,
        entry_id: int,
        last_confirmed: int,
        length_bytes: int,
        payload: bytes,
        /,
    ) -> bytes: ...

    def unpack_ledger_entry(self, stored: bytes, ledger_id: int, entry_id: int, /) -> tuple[int, int, bytes] | None: ...

    def scan_ledger_answers(
        self, data: bytes, max_frame_bytes: int, /
    ) -> tuple[int, list[tuple[int, int, int, int, int, bytes]]]:
        """Scan consecutive answers of a bookie to ADD and READ, up to the first other or incomplete frame.

        Return the size of the scanned frames in bytes, and the fields of `Answer` for each answer.
        """


def _compiled() -> Core | None:
    """Return the compiled core; None if it is missing, switched off, or of another version of pybroker."""
    if os.environ.get(PURE_PYTHON_VARIABLE, "") not in {"", "0"}:
        return None
    try:
        from pybroker.wire import _core  # noqa: PLC0415
    except ImportError:
        return None
    return _core if _core.INTERFACE_VERSION == _INTERFACE_VERSION else None


COMPILED = _compiled()
IMPLEMENTATION = "python" if COMPILED is None else "compiled"
CRC32C = "library" if COMPILED is None else COMPILED.CRC32C
"""The implementation of CRC32C for messages: `library` (the package crc32c), `sse4.2` or `software`."""
