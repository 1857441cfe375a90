"""Errors of the BookKeeper client as errors of ledger stores. Pure."""

from __future__ import annotations

from pybroker import errors
from pybroker.bookkeeper.errors import BookKeeperError, DamagedEntry, LedgerFenced, NoSuchEntry, NoSuchLedger


def store_error(error: BookKeeperError) -> errors.StoreError:
    if isinstance(error, NoSuchLedger):
        return errors.NoSuchLedger(str(error))
    if isinstance(error, LedgerFenced):
        return errors.LedgerFenced(str(error))
    return errors.StoreError(str(error))


def read_error(error: BookKeeperError, ledger_id: int, entry_id: int) -> errors.StoreError:
    """Convert the error of a failed read of an entry to a StoreError. An entry that must exist and is on none of its
    bookies counts as damaged (DamagedEntries).
    """
    if isinstance(error, (DamagedEntry, NoSuchEntry)):
        return errors.DamagedEntries(ledger_id, entry_id, entry_id, str(error))
    return store_error(error)
