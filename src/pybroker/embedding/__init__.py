"""An embedded broker: runs in the process of a test or program, on its event loop or on a separate thread.

    async with pybroker.embed() as broker:
        client = pulsar.Client(broker.service_url)

An embedded broker changes no global state (signals, logging, garbage collection, metric registries), so several brokers
can run in one process. Start with `embedded_broker.py`; `thread.py` is the version for code without an event loop, and
`faults.py` has the faults that a test can inject.
"""

from pybroker.embedding.embedded_broker import EmbeddedBroker, embed
from pybroker.embedding.faults import Fault, Faults, UnusedFault
from pybroker.embedding.thread import BrokerThread, embed_in_thread

__all__ = ["BrokerThread", "EmbeddedBroker", "Fault", "Faults", "UnusedFault", "embed", "embed_in_thread"]
