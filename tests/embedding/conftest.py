"""Official clients of embedded brokers."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

from pybroker.embedding import BrokerThread, embed_in_thread

Connect = Callable[..., pulsar.Client]


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    with embed_in_thread() as embedded:
        yield embedded


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes clients that end with the test, and say nothing: what goes wrong here is meant to."""
    clients = []

    def make(url: str, **options: Any) -> pulsar.Client:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        clients.append(pulsar.Client(url, logger=logger, operation_timeout_seconds=20, **options))
        return clients[-1]

    yield make
    for client in clients:
        with contextlib.suppress(pulsar.AlreadyClosed):
            client.close()


@pytest.fixture
def client(broker: BrokerThread, connect: Connect) -> pulsar.Client:
    return connect(broker.service_url)
