"""States of the copies of an entry, from the answers of bookies."""

from __future__ import annotations

import pytest

from pybroker.bookkeeper import DigestType
from pybroker.bookkeeper.bookie_connection import ReadResult
from pybroker.bookkeeper.errors import OK, UNREACHABLE, NoSuchEntry, NoSuchLedger, UnknownLedgerState
from pybroker.bookkeeper.inspection.copies import CopyState, compare_copies
from pybroker.bookkeeper.protocol.entry_format import EntryFormat

FORMAT = EntryFormat(7, DigestType.CRC32C, b"")
VALID = ReadResult(OK, FORMAT.pack(3, 2, 100, b"payload"))
RECOVERED = ReadResult(OK, FORMAT.pack(3, -1, 100, b"payload"))
OTHER = ReadResult(OK, FORMAT.pack(3, 2, 100, b"another"))
LENGTH = ReadResult(OK, FORMAT.pack(3, 2, 101, b"payload"))
OTHER_ENTRY = ReadResult(OK, FORMAT.pack(4, 2, 100, b"payload"))
DAMAGED = ReadResult(OK, VALID.body[:-1] + b"x")
V, M, D, X, U, R = (
    CopyState.VALID,
    CopyState.MISSING,
    CopyState.DAMAGED,
    CopyState.DIFFERENT,
    CopyState.UNREACHABLE,
    CopyState.REFUSED,
)


@pytest.mark.parametrize(
    ("answers", "states"),
    [
        ([VALID, VALID, VALID], [V, V, V]),
        ([VALID, RECOVERED], [V, V]),
        ([VALID, OTHER, VALID], [V, X, V]),
        ([LENGTH, VALID, VALID], [X, V, V]),
        ([VALID, OTHER], [X, X]),
        ([VALID, OTHER, LENGTH], [X, X, X]),
        ([DAMAGED, VALID], [D, V]),
        ([OTHER_ENTRY, VALID], [D, V]),
        ([ReadResult(NoSuchEntry.code, b""), ReadResult(NoSuchLedger.code, b""), VALID], [M, M, V]),
        ([ReadResult(UNREACHABLE, b""), ReadResult(UnknownLedgerState.code, b"")], [U, R]),
    ],
)
def test_copies_have_states(answers: list[ReadResult], states: list[CopyState]) -> None:
    found = compare_copies(FORMAT, 3, [(f"b{number}", each) for number, each in enumerate(answers)])
    assert [each.state for each in found] == states
