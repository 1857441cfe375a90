"""The credentials of the broker as a client of its own cluster, checked at the start."""

import pytest

from pybroker.config import BrokerConfig, Problems
from pybroker.configuration_check import check

NEEDED = "needs brokerClientAuthenticationPlugin"
CLUSTER = {"metadata_store_url": "zk:127.0.0.1:2181", "authentication_enabled": True}


def problems_of(**settings: object) -> list[str]:
    problems = Problems()
    check(BrokerConfig(**settings), frozenset(), problems)  # type: ignore[arg-type]
    return [each for each in problems.found if NEEDED in each]


@pytest.mark.parametrize("plugin", ["", "org.apache.pulsar.client.impl.auth.AuthenticationDisabled"])
def test_cluster_with_authentication_needs_credentials_of_the_broker(plugin: str) -> None:
    assert len(problems_of(**CLUSTER, broker_client_authentication_plugin=plugin)) == 1


def test_credentials_or_local_ledgers_satisfy_the_check() -> None:
    plugin = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
    assert not problems_of(**CLUSTER, broker_client_authentication_plugin=plugin)
    assert not problems_of(**CLUSTER, ledger_store="local")
    assert not problems_of(authentication_enabled=True)
