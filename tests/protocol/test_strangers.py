"""Connections that do not say CONNECT: they keep nobody out, and they do not stay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.support.broker_process import BrokerProcess
from tests.support.metrics import until_metric
from tests.support.raw_client import CLOSED, RawClient, Type, connected, opened

PER_ADDRESS = 20
MAX_CONNECTIONS = 5


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"maxConnectionsBeforeConnectPerIp": str(PER_ADDRESS), "brokerMaxConnections": str(MAX_CONNECTIONS)}
    with BrokerProcess(tmp_path_factory.mktemp("narrow"), settings).running_well() as broker:
        yield broker


def ping(client: RawClient) -> str:
    client.send(Type.PING)
    return str(client.reply()["type"])


def test_strangers_keep_nobody_out_and_the_oldest_make_way(narrow: BrokerProcess) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(connected(narrow))
        unauthenticated = [stack.enter_context(opened(narrow)) for _ in range(3 * PER_ADDRESS)]
        # More strangers than there may be connections, and honest clients get in up to the limit.
        for _ in range(MAX_CONNECTIONS - 1):
            assert ping(stack.enter_context(connected(narrow))) == "PONG"
        late = stack.enter_context(opened(narrow))
        assert late.connect()["error"] == "NotAllowedError"
        assert ping(first) == "PONG"
        # Each newcomer, those that connected included, has cost the oldest one of them its place.
        assert [stranger.reply() for stranger in unauthenticated[: 2 * PER_ADDRESS]] == [CLOSED] * (2 * PER_ADDRESS)
        assert ping(unauthenticated[-1]) == "PONG"
        name = "pybroker_displaced_connections_total"
        until_metric(narrow, lambda displaced: displaced >= 2 * PER_ADDRESS, name)


def test_pings_before_connect_are_answered_a_few_times(narrow: BrokerProcess) -> None:
    with opened(narrow) as stranger:
        assert [ping(stranger) for _ in range(10)] == ["PONG"] * 10
        stranger.send(Type.PING)
        assert stranger.reply() == CLOSED
    with connected(narrow) as client:
        assert [ping(client) for _ in range(20)] == ["PONG"] * 20


def test_a_stranger_has_its_time_and_no_more_while_others_stay(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = {"connectCommandTimeoutMs": "200"}
    with BrokerProcess(tmp_path_factory.mktemp("short"), settings).running_well() as broker, ExitStack() as stack:
        client = stack.enter_context(connected(broker))
        unauthenticated = [stack.enter_context(opened(broker)) for _ in range(5)]
        assert [stranger.reply() for stranger in unauthenticated] == [CLOSED] * 5
        assert ping(client) == "PONG"
        assert "connectCommandTimeoutMs" in broker.log.read_text()
