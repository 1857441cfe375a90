"""The rule of orphaned ledgers: which ledgers may be deleted because no document lists them.

A ledger is orphaned if all of this holds:

* it has the properties that the owner's brokers write, and the name of a managed ledger;
* it was created at least `min_age_ms` ago, and `age_factor` times the time within which its creator stores the
  ledger's id in a document. The additional time allows for differences between the clocks of brokers;
* no document lists it. The documents must be read after the ledgers were listed, because a document may be written in
  between.

The last entry, the size and the state of a ledger do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from enum import Enum

from pybroker.bookkeeper.ledger_metadata import LedgerMetadata


class OrphanVerdict(Enum):
    """Whether a ledger may be deleted, or the first reason why it is kept."""

    ORPHANED = "no topic and no cursor refers to it"
    FOREIGN = "it does not have the properties of this cluster's managed ledgers"
    WITHOUT_AGE = "its time of creation is unknown"
    YOUNG = "it was created recently, or its time of creation is in the future"
    NAMED = "a topic or a cursor refers to it"


class OrphanRule:
    """Decides which ledgers are orphaned. `required`: properties that a ledger must have with these values.
    `owner_key`: a property that must not be empty. `named_within_ms` takes a ledger's properties. It returns the
    creator's time limit, in milliseconds, for storing the ledger's id in a document; None if the properties do not
    state the limit.
    """

    def __init__(
        self,
        required: Mapping[str, bytes],
        owner_key: str,
        named_within_ms: Callable[[Mapping[str, bytes]], int | None],
        age_factor: int,
        min_age_ms: int,
    ) -> None:
        if not required or min_age_ms <= 0 or age_factor <= 1:
            raise ValueError(
                "An orphan rule needs properties and a minimum age, because a rule without them would delete the "
                "ledgers of other applications"
            )
        self._required = required
        self._owner_key = owner_key
        self._named_within_ms = named_within_ms
        self._age_factor = age_factor
        self._min_age_ms = min_age_ms

    def is_own(self, metadata: LedgerMetadata) -> bool:
        """Return whether the ledger has the properties that all ledgers of this cluster have."""
        custom = metadata.custom
        return bool(custom.get(self._owner_key)) and all(
            custom.get(key) == value for key, value in self._required.items()
        )

    def verdict(
        self, ledger_id: int, metadata: LedgerMetadata, named_ids: Container[int], now_ms: int
    ) -> OrphanVerdict:
        """Decide whether the ledger may be deleted, or why it is kept. `named_ids`: the ledgers that documents list.
        `now_ms`: the start of the search, in milliseconds since 1970.
        """
        promise_ms = self._named_within_ms(metadata.custom)
        if promise_ms is None or not self.is_own(metadata):
            return OrphanVerdict.FOREIGN
        if metadata.created_ms is None:
            return OrphanVerdict.WITHOUT_AGE
        if now_ms - metadata.created_ms < max(self._min_age_ms, self._age_factor * promise_ms):
            return OrphanVerdict.YOUNG
        return OrphanVerdict.NAMED if ledger_id in named_ids else OrphanVerdict.ORPHANED
