"""Paths of ledgers below the root node of BookKeeper, as its hierarchical ledger manager builds them."""

from __future__ import annotations

import re
from itertools import pairwise

SHORT_IDS_END = (1 << 31) - 1
"""The first id with a path of five parts.

It is also the end of the counter of short ids: 2^31 - 1 itself has five parts.
"""
_SHORT_DIGITS, _LONG_DIGITS = 10, 19
_SHORT_CUTS, _LONG_CUTS = (2, 6), (3, 7, 11, 15)
_SHORT = re.compile(r"(\d{2})/(\d{4})/L(\d{4})")
_LONG = re.compile(r"(\d{3})/(\d{4})/(\d{4})/(\d{4})/L(\d{4})")
MAX_LEDGER_ID = (1 << 63) - 1


def ledger_path(ledger_id: int) -> str:
    """Return the path of a ledger's metadata below the root node, such as 00/0000/L0015; ids from `SHORT_IDS_END` on
    have five parts.
    """
    if not 0 <= ledger_id <= MAX_LEDGER_ID:
        raise ValueError(f"{ledger_id} is not a valid ledger id")
    is_short = ledger_id < SHORT_IDS_END
    digits = f"{ledger_id:0{_SHORT_DIGITS if is_short else _LONG_DIGITS}d}"
    cuts = (0, *(_SHORT_CUTS if is_short else _LONG_CUTS), len(digits))
    parts = [digits[start:end] for start, end in pairwise(cuts)]
    return "/".join((*parts[:-1], "L" + parts[-1]))


def ledger_id_of(path: str) -> int | None:
    """Return the id of the ledger whose metadata is at `path` below the root node; None for other nodes."""
    found = _SHORT.fullmatch(path) or _LONG.fullmatch(path)
    if found is None:
        return None
    ledger_id = int("".join(found.groups()))
    return ledger_id if ledger_id <= MAX_LEDGER_ID and ledger_path(ledger_id) == path else None
