"""Situations for `explain`, created with the official client, and its output for them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pulsar
from tests.clients.conftest import path_of, until

from pybroker.testing.broker import TestBroker


class Asked:
    """The output of `explain` for one subscription."""

    def __init__(self, broker: TestBroker, topic: str, subscription: str = "s") -> None:
        self._broker = broker
        self._path = f"{path_of(topic)}/subscription/{subscription}/explain"

    def document(self, **query: str) -> dict[str, Any]:
        """Return the document, optionally for a `consumer` or `key`."""
        words = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        document: dict[str, Any] = self._broker.admin("GET", f"{self._path}?{words}")
        assert document["waiting"] == any(each["waits"] for each in document["findings"])
        for finding in document["findings"]:
            assert finding["sentence"].endswith(".")
            assert all(action["path"].startswith("/admin/v") for action in finding["actions"])
        return document

    def codes(self, **query: str) -> list[str]:
        return [each["code"] for each in self.document(**query)["findings"]]

    def until(self, *codes: str, **query: str) -> dict[str, Any]:
        """Wait until the findings have exactly these codes in this order. Return the first finding."""
        found: list[dict[str, Any]] = []
        seen: list[str] = []

        def is_so() -> bool:
            found[:] = self.document(**query)["findings"]
            seen[:] = [each["code"] for each in found]
            return seen == list(codes)

        try:
            until(is_so)
        except AssertionError:
            raise AssertionError(f"found was {seen} instead of {list(codes)}") from None
        return found[0] if found else {}


def send(client: pulsar.Client, topic: str, *keys: str | None) -> list[str]:
    """Send a message with each key and return the message ids."""
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"m", partition_key=key) if key else producer.send(b"m") for key in keys]
    producer.close()
    return [shown(message_id) for message_id in ids]


def shown(message_id: pulsar.MessageId) -> str:
    return f"{message_id.ledger_id()}:{message_id.entry_id()}"


def subscribe(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType, name: str, **options: Any
) -> pulsar.Consumer:
    return client.subscribe(topic, "s", kind, consumer_name=name, **options)


def sticky(*ranges: tuple[int, int]) -> dict[str, Any]:
    return {"key_shared_policy": pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, False, list(ranges))}


def owner_of(broker: TestBroker, topic: str, key: str, subscription: str = "s") -> str | None:
    at = broker.admin("GET", f"{path_of(topic)}/subscription/{subscription}/hash?key={key}")
    return None if at["consumer"] is None else str(at["consumer"]["name"])
