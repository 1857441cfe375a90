"""Errors of the BookKeeper client: one subclass of `BookKeeperError` for each case that a caller can act on."""

from __future__ import annotations

from typing import ClassVar


class BookKeeperError(Exception):
    """An operation on a ledger or a bookie failed."""


class InvalidAnswer(BookKeeperError):
    """The bookie's bytes are not an answer to a request of this client. The client closes the connection."""


class InvalidMetadata(BookKeeperError):
    """The metadata of a ledger, or the description of a bookie, cannot be decoded."""


class BookieUnavailable(BookKeeperError):
    """The bookie cannot be reached, did not answer in time, or its connection was lost. A request may have been performed."""


class NotEnoughBookies(BookKeeperError):
    """The cluster has fewer usable bookies than the ledger needs."""


class EntryUnavailable(BookKeeperError):
    """The entry exists or may exist, and no replica can be read now."""


class DamagedEntry(BookKeeperError):
    """The bytes of an entry do not match its digest, its ledger or its id."""


class LedgerExists(BookKeeperError):
    """A ledger with this id exists already."""


class LedgerClosed(BookKeeperError):
    """This writer was closed and accepts no more entries."""


class TooManyPending(BookKeeperError):
    """The writer holds as many unconfirmed entries as its limits allow. Nothing was stored; the writer can continue."""


class EntryTooLarge(BookKeeperError):
    """The entry is larger than a bookie accepts. Nothing was stored; the writer can continue."""


class MetadataConflict(BookKeeperError):
    """The ledger's metadata has another version: another client changed it."""


class MetadataUnknown(BookKeeperError):
    """The metadata store did not answer: a change may or may not have happened."""


class AppendUnknown(BookKeeperError):
    """The entry may be stored or not. Closing the ledger decides it."""


class BookieRefusal(BookKeeperError):
    """The bookie answered with a code other than success."""

    code: ClassVar[int] = 0
    by_code: ClassVar[dict[int, type[BookieRefusal]]] = {}

    def __init_subclass__(cls, *, code: int) -> None:
        cls.code = code
        BookieRefusal.by_code[code] = cls


class NoSuchLedger(BookieRefusal, code=1):
    """The ledger does not exist, on this bookie or in the metadata store."""


class NoSuchEntry(BookieRefusal, code=2):
    """The entry does not exist."""


class BadRequest(BookieRefusal, code=100):
    """The bookie does not accept the request, for example an operation of a newer version."""


class StorageFault(BookieRefusal, code=101):
    """The bookie's storage failed."""


class WrongKey(BookieRefusal, code=102):
    """The ledger has another password, or the bookie requires authentication."""


class UnsupportedVersion(BookieRefusal, code=103):
    """The bookie does not know this version of the protocol."""


class LedgerFenced(BookieRefusal, code=104):
    """Another client recovers or has recovered the ledger, which accepts no more entries of this writer."""


class ReadOnlyBookie(BookieRefusal, code=105):
    """The bookie accepts no entries, for example because its disk is full."""


class TooManyRequests(BookieRefusal, code=106):
    """The bookie refuses the request, because too many requests are in progress."""


class UnknownLedgerState(BookieRefusal, code=107):
    """The bookie lost its disk and cannot tell whether it had the ledger. This never means that an entry does not exist."""


class OtherRefusal(BookieRefusal, code=-1):
    """A code that this client does not know."""


OK = 0
UNREACHABLE = -2
"""Not a code that bookies send: the connection was lost, or the response did not arrive in time."""
DAMAGED = -3
"""Not a code that bookies send: the entry in the response does not match its digest."""


def error_of(code: int, text: str) -> BookKeeperError:
    """Return the error with the text `text` for a result code of a bookie, or for `UNREACHABLE` or `DAMAGED`."""
    if code == UNREACHABLE:
        return BookieUnavailable(text)
    if code == DAMAGED:
        return DamagedEntry(text)
    refusal = BookieRefusal.by_code.get(code)
    return refusal(text) if refusal is not None else OtherRefusal(f"{text} (code {code})")
