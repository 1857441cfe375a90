"""Account whose shares of limited resources the current request uses (`ASKING`).

The servers run each request in a task and set `ASKING` in its context. The broker's own work runs as the holder
`BROKER`, which is not limited to a share.
"""

from contextvars import ContextVar

from pybroker.waiting.fair_shares import Holder

BROKER = Holder("broker", is_operator=True)
ASKING: ContextVar[Holder] = ContextVar("asking", default=BROKER)
