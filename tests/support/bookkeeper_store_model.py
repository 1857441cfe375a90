"""The ledger store on the model of bookies."""

from __future__ import annotations

from random import Random

from tests.support.bookie_model import ModelMetadata, ModelNetwork

from pybroker.bookkeeper import BookKeeperClient, BookKeeperOptions, Quorums
from pybroker.bookkeeper_store.bookkeeper_ledger_store import BookKeeperLedgerStore
from pybroker.bookkeeper_store.client_options import NO_LIMIT, max_entry_bytes
from pybroker.bookkeeper_store.naming_limit import NamingLimit
from pybroker.memory.broker_memory import Memory
from pybroker.runtime.clock import Clock
from pybroker.wire.entry_columns import message_counts


class QuickNetwork(ModelNetwork):
    """A network whose delays are short, for tests on the real clock."""

    def delay_s(self) -> float:
        return self.chance.choice((0.0, 0.0, 0.0001))


class ModelCluster:
    """Bookies and metadata, with stores as those of several brokers."""

    def __init__(
        self, chance: Random, bookies: int = 3, quorums: Quorums | None = None, *, is_quick: bool = True
    ) -> None:
        self.chance = chance
        self.network = (QuickNetwork if is_quick else ModelNetwork)(chance, bookies)
        self.metadata = ModelMetadata(chance)
        self.options = BookKeeperOptions(quorums=quorums or Quorums(2, 2, 2), **NO_LIMIT)

    def client(self, clock: Clock | None = None) -> BookKeeperClient:
        network = self.network
        return BookKeeperClient(
            self.metadata,
            network,
            self.options,
            chance=self.chance,
            clock=clock or Clock(),
            open_transport=network.open_transport,
        )

    def store(
        self,
        clock: Clock | None = None,
        max_in_flight_bytes: int | None = None,
        naming: NamingLimit | None = None,
    ) -> BookKeeperLedgerStore:
        clock = clock or Clock()
        return BookKeeperLedgerStore(
            self.client(clock),
            Memory.ample(clock),
            message_counts,
            max_entry_bytes=max_entry_bytes(self.options),
            max_in_flight_bytes=max_in_flight_bytes,
            naming=naming or NamingLimit(clock, None),
        )


def model_store(chance: Random) -> BookKeeperLedgerStore:
    return ModelCluster(chance).store()
