"""A small asyncio client of the binary protocol, for any Pulsar broker.

    from pybroker.client import connect

    async with connect("pulsar://localhost:6650") as client:
        producer = await client.producer("orders")
        consumer = await client.consumer("orders", "billing", kind="shared")
        async with await client.transaction() as transaction:
            message = await consumer.receive()
            await producer.send(b"done", transaction=transaction)
            await consumer.ack(message, transaction=transaction)

The Spark source and the pipelines use whole entries: see `producing/entry_producer.py` and
`consuming/entry_consumer.py`. The classes of this package are imported at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pybroker.client.access import Access
    from pybroker.client.client import TopicSchema
    from pybroker.client.client_transactions import OutcomeUnknown, Transaction, TransactionEnded, TransactionFailed
    from pybroker.client.consuming.message_consumer import EndOfTopic, MessageConsumer
    from pybroker.client.failures import ClientError, ConnectionLost, NotSent, RequestTimedOut
    from pybroker.client.message import EARLIEST, LATEST, Message, MessageId, OutgoingMessage
    from pybroker.client.producing.message_producer import MessageProducer
    from pybroker.client.pulsar_client import PulsarClient, connect
    from pybroker.client.transactional_sinks import BatchRefused, Sink, SinksNotServed

_MODULES = {
    "connect": "pulsar_client",
    "PulsarClient": "pulsar_client",
    "Access": "access",
    "TopicSchema": "client",
    "EARLIEST": "message",
    "LATEST": "message",
    "Message": "message",
    "MessageId": "message",
    "OutgoingMessage": "message",
    "MessageProducer": "producing.message_producer",
    "MessageConsumer": "consuming.message_consumer",
    "EndOfTopic": "consuming.message_consumer",
    "Transaction": "client_transactions",
    "TransactionEnded": "client_transactions",
    "TransactionFailed": "client_transactions",
    "OutcomeUnknown": "client_transactions",
    "Sink": "transactional_sinks",
    "BatchRefused": "transactional_sinks",
    "SinksNotServed": "transactional_sinks",
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
    if name not in _MODULES:
        raise AttributeError(f"module 'pybroker.client' has no attribute {name!r}")
    return getattr(import_module(f"pybroker.client.{_MODULES[name]}"), name)
