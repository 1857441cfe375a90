"""The holder that the current request counts for in resources that all clients share.

The servers of the binary protocol and of HTTP run each request in a task and set `ASKING` in it. Queues in lower layers
read it. The broker's own work is no client request: it runs as the holder `BROKER`, which is not limited to a share.
"""

from contextvars import ContextVar

from pybroker.waiting.fair_shares import Holder

BROKER = Holder("broker", is_operator=True)
ASKING: ContextVar[Holder] = ContextVar("asking", default=BROKER)
