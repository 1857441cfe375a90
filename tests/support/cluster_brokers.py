"""A registry of brokers for tests: every broker is registered, one is the leader."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pybroker.cluster.advertised_addresses import LookupResult
from pybroker.cluster.broker_registry import RegisteredBroker


def registered(number: int, listeners: Mapping[str, LookupResult] | None = None) -> RegisteredBroker:
    return RegisteredBroker(
        f"broker{number}:8080",
        f"http://broker{number}:8080",
        "",
        f"pulsar://broker{number}:6650",
        "",
        listeners or {},
    )


class FixedRegistry:
    """`BrokerRegistry` with brokers that the test sets. `choose` is the leader's decision."""

    def __init__(self, own: RegisteredBroker, brokers: dict[str, RegisteredBroker]) -> None:
        self._own = own
        self._brokers = brokers
        self.leader_id = ""
        self.assigned: dict[str, str] = {}
        self.choose: Callable[[str], RegisteredBroker] = lambda _bundle: own

    @property
    def own_broker(self) -> RegisteredBroker:
        return self._own

    def brokers(self) -> Mapping[str, RegisteredBroker]:
        return self._brokers

    def leader(self) -> RegisteredBroker | None:
        return self._brokers.get(self.leader_id)

    def is_leader(self) -> bool:
        return self.leader_id == self._own.broker_id

    def assign(self, bundle: str, broker_id: str) -> None:
        self.assigned[bundle] = broker_id

    async def choose_broker(self, bundle: str) -> RegisteredBroker:
        return self.choose(bundle)
