"""Policies for entries that cannot be read, and their errors."""

from __future__ import annotations

from enum import Enum


class BadRecords(Enum):
    """How a reader handles an entry or message that it cannot decode: the values of the option `badRecords`."""

    FAIL = "fail"
    """Raise an error with the topic and position of the record."""
    NULL = "null"
    """Return a row with a null payload."""
    COLUMN = "column"
    """Return a row with a null payload and the reason in the column `__error`."""


class MissingFields(Enum):
    """How a reader handles an Avro field that is nullable without a default in the reader's schema, and missing in the
    writer's schema: the values of the option `missingFields`.
    """

    FAIL = "fail"
    """The payload cannot be decoded, as Avro prescribes."""
    NULL = "null"
    """The field is null."""


class CryptoFailureAction(Enum):
    """How a reader handles an entry that it cannot decrypt, as in Pulsar's clients."""

    FAIL = "FAIL"
    DISCARD = "DISCARD"
    """Return no rows."""
    CONSUME = "CONSUME"
    """Return one row with the encrypted bytes."""


class BadEntry(Exception):
    """An entry, or one message of a batch, cannot be read. `batch_index` is -1 for a whole entry."""

    def __init__(
        self, topic: str, ledger_id: int, entry_id: int, batch_index: int, reason: str, way_out: str = ""
    ) -> None:
        self.topic = topic
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.batch_index = batch_index
        self.reason = reason
        place = f"entry {ledger_id}:{entry_id}" + (f", message {batch_index} of its batch" if batch_index >= 0 else "")
        way_out = way_out or "to continue with the next message, set badRecords=null or badRecords=column"
        super().__init__(f"{topic}: {place} cannot be read: {reason}. {way_out[0].upper()}{way_out[1:]}")

    def __reduce__(self) -> tuple[type[BadEntry], tuple[str, int, int, int, str]]:
        return type(self), (self.topic, self.ledger_id, self.entry_id, self.batch_index, self.reason)


class UndecryptableEntry(BadEntry):
    """An entry is encrypted, and no private key matches it."""

    def __init__(self, topic: str, ledger_id: int, entry_id: int, batch_index: int, reason: str) -> None:
        way_out = (
            "configure the private key, or set cryptoFailureAction to DISCARD (no rows) or CONSUME (encrypted bytes)"
        )
        super().__init__(topic, ledger_id, entry_id, batch_index, reason, way_out)
