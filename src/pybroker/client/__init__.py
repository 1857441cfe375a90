"""A small asyncio client of the binary protocol, for any broker that speaks it.

    from pybroker.client import connect

    async with connect("pulsar://localhost:6650") as client:
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing", kind="shared")
        async with await client.transaction() as transaction:
            message = await consumer.receive()
            await producer.send(b"done", transaction=transaction)
            await consumer.ack(message, transaction=transaction)

Whole entries, which sources and pipelines handle, go through `producer.py` and `consumer.py`. What is imported from here
comes when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.client.access import Access
    from pybroker.client.client import TopicSchema
    from pybroker.client.failures import (
        ClientError,
        ConnectionLost,
        NotSent,
        RequestTimedOut,
    )
    from pybroker.client.message import (
        EARLIEST,
        LATEST,
        Message,
        MessageId,
        OutgoingMessage,
    )
    from pybroker.client.message_consumer import EndOfTopic, MessageConsumer
    from pybroker.client.message_producer import MessageProducer
    from pybroker.client.pulsar_client import PulsarClient, connect
    from pybroker.client.sinks import BatchRefused, Sink, SinksNotServed
    from pybroker.client.transactions import (
        OutcomeUnknown,
        Transaction,
        TransactionEnded,
        TransactionFailed,
    )

_PLACES = {
    "connect": "pulsar_client",
    "PulsarClient": "pulsar_client",
    "Access": "access",
    "TopicSchema": "client",
    "EARLIEST": "message",
    "LATEST": "message",
    "Message": "message",
    "MessageId": "message",
    "OutgoingMessage": "message",
    "MessageProducer": "message_producer",
    "MessageConsumer": "message_consumer",
    "EndOfTopic": "message_consumer",
    "Transaction": "transactions",
    "TransactionEnded": "transactions",
    "TransactionFailed": "transactions",
    "OutcomeUnknown": "transactions",
    "Sink": "sinks",
    "BatchRefused": "sinks",
    "SinksNotServed": "sinks",
    "ClientError": "failures",
    "ConnectionLost": "failures",
    "NotSent": "failures",
    "RequestTimedOut": "failures",
}

__all__ = [
    "EARLIEST",
    "LATEST",
    "Access",
    "BatchRefused",
    "ClientError",
    "ConnectionLost",
    "EndOfTopic",
    "Message",
    "MessageConsumer",
    "MessageId",
    "MessageProducer",
    "NotSent",
    "OutcomeUnknown",
    "OutgoingMessage",
    "PulsarClient",
    "RequestTimedOut",
    "Sink",
    "SinksNotServed",
    "TopicSchema",
    "Transaction",
    "TransactionEnded",
    "TransactionFailed",
    "connect",
]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'pybroker.client' has no attribute {name!r}")
    return getattr(import_module(f"pybroker.client.{_PLACES[name]}"), name)
