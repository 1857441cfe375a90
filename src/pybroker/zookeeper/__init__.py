"""An asyncio client of ZooKeeper 3.6 or newer, with the operations that a broker needs. It does not depend on the
broker.

Start with `client.py`. `session.py` has the rules of a session without IO, `operations.py` the requests and answers,
`jute.py` the encoding of single values, `addresses.py` the text `host1:2181,host2:2181/chroot`.

API::

    client = ZooKeeperClient(ServerAddresses.parse("h1:2181,h2:2181/chroot"), ClientOptions(session_timeout_ms=30_000))
    await client.start(deadline_s=30)         # returns with a session; ConnectionLoss after the deadline
    client.listen(listener)                   # listener(SessionEvent), called on the event loop
    value, stat = await client.get("/a")      # NoNode
    stat = await client.exists("/a")          # None without the node
    names = await client.children("/a")       # in no order; NoNode
    path, stat = await client.create("/a/b", b"", CreateMode.EPHEMERAL_SEQUENTIAL)   # NodeExists, NoNode
    path, stat = await client.create("/a/b/c", b"", makes_parents=True)              # parents are containers
    stat = await client.set("/a", b"new", stat.version)        # BadVersion, NoNode
    await client.delete("/a", version)                         # BadVersion, NoNode, NotEmpty
    results = await client.multi([CreateOp("/x", b"1"), SetOp("/y", b"2", 3), DeleteOp("/z"), CheckOp("/w", 7)])
    values = await client.multi_read([GetOp("/x"), ChildrenOp("/y")])                # an error is a result of its own
    await client.sync("/")                    # later reads see all changes that were committed before this call
    watch = client.watch("/ledgers/available", on_event, is_recursive=False)         # persistent; works while suspended
    await watch.added                         # optional: raises if the server refuses the watch
    watch.remove()
    client.holds_session()                    # by this process's clock; check it before an act that needs ownership
    await client.close()                      # ends the session: its ephemeral nodes disappear at once

Sessions: `SessionEvent.SUSPENDED` (no connection), `RECONNECTED` (the same session again), `LOST` (the session is over,
as the server reports or by the client's own clock), `RENEWED` (a new session exists; the ephemeral nodes of the former
session are or will be deleted). After RECONNECTED and RENEWED all watches are set again, but changes since SUSPENDED
were not reported: read the watched nodes again.

Errors: `ZooKeeperError` and its subclasses, one for each code of the server. `ConnectionLoss`: the request was sent and
its answer is lost, so a change may or may not have happened. `NotSent`, a `ZooKeeperError` too: it certainly did not happen.
A failed `multi` raises the error of its first failing operation, with `operation_index`. Requests wait while the client is
suspended, for `operation_timeout_ms` at most, and fail with NotSent afterwards or when the session is lost.
"""

from pybroker.zookeeper.addresses import ServerAddresses
from pybroker.zookeeper.client import ClientOptions, Watch, ZooKeeperClient
from pybroker.zookeeper.errors import ConnectionLoss, NotSent, ZooKeeperError
from pybroker.zookeeper.operations import (
    ANY_VERSION,
    CheckOp,
    ChildrenOp,
    CreateMode,
    CreateOp,
    DeleteOp,
    GetOp,
    NodeEvent,
    NodeEventType,
    SetOp,
    Stat,
)
from pybroker.zookeeper.session import SessionEvent, SessionState, SessionTicket

__all__ = [
    "ANY_VERSION",
    "CheckOp",
    "ChildrenOp",
    "ClientOptions",
    "ConnectionLoss",
    "CreateMode",
    "CreateOp",
    "DeleteOp",
    "GetOp",
    "NodeEvent",
    "NodeEventType",
    "NotSent",
    "ServerAddresses",
    "SessionEvent",
    "SessionState",
    "SessionTicket",
    "SetOp",
    "Stat",
    "Watch",
    "ZooKeeperClient",
    "ZooKeeperError",
]
