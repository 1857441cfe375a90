"""A broker inside of somebody else's process: on their event loop, or on a thread of its own.

    async with pybroker.embed() as broker:
        client = pulsar.Client(broker.service_url)

Owns no signal, no logging, no collector, no registry: several can run in one process, and nothing of them is left when they end.
Start reading at `broker`; `thread` is the twin for code without a loop, `faults` what a test can make go wrong, and `virtual_time`
how the broker's time is moved.
"""

from pybroker.embedding.embedded_broker import EmbeddedBroker, embed
from pybroker.embedding.faults import Fault, Faults, UnusedFault
from pybroker.embedding.thread import BrokerThread, embed_in_thread

__all__ = ["BrokerThread", "EmbeddedBroker", "Fault", "Faults", "UnusedFault", "embed", "embed_in_thread"]
