"""Rules that decide whether a broker may join a cluster, by load managers and addresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pybroker.cluster.broker_registry import RegisteredBroker
from pybroker.cluster.membership.registration import MODULAR_LOAD_MANAGER, Registration


def configured_class_refusal(name: str) -> str | None:
    """Return an error text if the load manager `name`, the value of `loadManagerClassName`, cannot be used; None if it
    can.
    """
    if name in ("", MODULAR_LOAD_MANAGER):
        return None
    return (
        f"loadManagerClassName is {name}: pybroker joins clusters with {MODULAR_LOAD_MANAGER} only. Set this class at all"
        " brokers of the cluster"
    )


def load_manager_refusal(brokers: Iterable[RegisteredBroker]) -> str | None:
    """Return an error text if the load manager of a registered broker cannot work beside pybroker; None if all can. A
    registration that names no load manager is accepted: it is from a broker before Pulsar 3.0.
    """
    for broker in brokers:
        name = broker.load_manager_class
        if name and name != MODULAR_LOAD_MANAGER:
            short = name.rpartition(".")[2]
            return (
                f"broker {broker.broker_id} uses the load manager {short}, but all brokers of a cluster must use the same "
                f"load manager, and pybroker supports only {MODULAR_LOAD_MANAGER}. Set loadManagerClassName of the other "
                "brokers to this class and restart these brokers, or give this broker its own cluster"
            )
    return None


def address_refusal(own: RegisteredBroker, others: Iterable[RegisteredBroker]) -> str | None:
    """Return an error text if another broker has one of this broker's addresses; None if they are unique. (Ownership
    documents identify brokers by address.)
    """
    own_urls = _urls(own)
    for other in others:
        shared = sorted(own_urls & _urls(other)) if other.broker_id != own.broker_id else []
        if shared:
            return (
                f"broker {other.broker_id} is registered with an address of this broker, {own.broker_id}:"
                f" {', '.join(shared)}. Give each broker its own advertisedAddress, ports and advertisedListeners; if that"
                " broker has just been killed, wait until its session with the metadata store ends"
            )
    return None


def _urls(broker: RegisteredBroker) -> set[str]:
    found = set(broker.addresses)
    for listener in broker.advertised_listeners.values():
        found |= {listener.broker_url, listener.broker_url_tls}
    return found - {""}


def java_broker_of(registrations: Mapping[str, Registration]) -> str | None:
    """Return the id of a registered Java broker; None if there is none."""
    return next((broker_id for broker_id, each in sorted(registrations.items()) if not each.is_pybroker), None)
