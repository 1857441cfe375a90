"""What happens with entries that cannot be read, and how that is said."""

from __future__ import annotations

from enum import Enum


class BadRecords(Enum):
    """What a message, or an entry, that cannot be decoded comes to; the values are those of the option `badRecords`."""

    FAIL = "fail"
    """Reading ends with an error that names it."""
    NULL = "null"
    """It is a row whose payload is null."""
    COLUMN = "column"
    """It is a row whose payload is null, and the column `__error` says why."""


class MissingFields(Enum):
    """The treatment of an Avro field that is missing in the writer's schema and is nullable without a default in the
    reader's schema. The values are those of the option `missingFields`.
    """

    FAIL = "fail"
    """The payload cannot be decoded, as Avro prescribes."""
    NULL = "null"
    """The field is null."""


class CryptoFailureAction(Enum):
    """What happens with an entry that cannot be decrypted, as in Pulsar's clients."""

    FAIL = "FAIL"
    DISCARD = "DISCARD"
    """It gives no rows."""
    CONSUME = "CONSUME"
    """It is one row with the encrypted bytes as they are."""


class BadEntry(Exception):
    """An entry, or the message `batch_index` of its batch (-1: the entry), that cannot be read, and why."""

    def __init__(
        self, topic: str, ledger_id: int, entry_id: int, batch_index: int, reason: str, way_out: str = ""
    ) -> None:
        self.topic = topic
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.batch_index = batch_index
        self.reason = reason
        place = f"entry {ledger_id}:{entry_id}" + (f", message {batch_index} of its batch" if batch_index >= 0 else "")
        way_out = way_out or "badRecords=null or badRecords=column reads past it"
        super().__init__(f"{topic}: {place} cannot be read: {reason}; {way_out}")

    def __reduce__(self) -> tuple[type[BadEntry], tuple[str, int, int, int, str]]:
        return type(self), (self.topic, self.ledger_id, self.entry_id, self.batch_index, self.reason)


class UndecryptableEntry(BadEntry):
    """An encrypted entry for which no key was given, or only wrong ones."""

    def __init__(self, topic: str, ledger_id: int, entry_id: int, batch_index: int, reason: str) -> None:
        way_out = "give the private key, or choose cryptoFailureAction DISCARD (no rows) or CONSUME (encrypted bytes)"
        super().__init__(topic, ledger_id, entry_id, batch_index, reason, way_out)


class CannotDecrypt(Exception):
    """Why an encrypted payload stays closed; never carries a key."""
