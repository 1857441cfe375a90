"""One broker for each test module, and official clients on it, for tests that read with Arrow and without Spark."""

from tests.clients.conftest import broker, client, own_broker, topic

__all__ = ["broker", "client", "own_broker", "topic"]
