"""Bugs that are planted in the list of a topic's ledgers; both the walks of cursors and those of whole ledgers must find them."""

import pytest

from pybroker.managed_ledger.ledger_list import LedgerList


def entries_behind_a_gap_are_counted_as_if_it_were_none(patch: pytest.MonkeyPatch) -> None:
    def remove(self: LedgerList, ledger_ids: list[int]) -> None:
        before = dict(zip(self._ids, self._entries_before, strict=True))
        original(self, ledger_ids)
        self._entries_before = [before[ledger_id] for ledger_id in self._ids]

    original = LedgerList.remove
    patch.setattr(LedgerList, "remove", remove)
