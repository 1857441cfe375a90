"""An asyncio client of Apache BookKeeper, which stores ledgers on several bookies. It does not depend on the broker.

Start with `client.py`: it creates, recovers, closes and deletes ledgers. `ledger_writer.py`, `ledger_reader.py` and
`ledger_recovery.py` do the work; `bookie_pool.py` and `bookie_connection.py` have the connections; `metadata_store.py`
has the interfaces to the metadata, `zookeeper_metadata.py` their implementation.

Rules without IO: `protocol/` and `ledger_metadata.py` (bytes), `append_state.py` (acknowledgements and the change of an
ensemble), `quorums.py` (which conclusions the responses of bookies allow), `bookie_choice.py`, `ledger_paths.py`.

API::

    client = BookKeeperClient(store, registry, BookKeeperOptions(), chance=random.SystemRandom(), clock=runtime.clock)
    writer = await client.create_ledger({"application": b"pulsar"}, listener)
    entry_id = writer.append(payload, context)       # the listener is notified: stored, fenced or unknown
    metadata = await client.close_ledger(writer)     # decides unknown entries: stored up to metadata.last_entry_id
    reader = await client.recover_ledger(ledger_id)  # fences another writer, closes the ledger
    entries = await reader.read(0, max_entries=100, max_bytes=1 << 20)
    await client.close()
"""

from pybroker.bookkeeper.client import BookKeeperClient
from pybroker.bookkeeper.errors import BookKeeperError
from pybroker.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from pybroker.bookkeeper.ledger_reader import LedgerReader
from pybroker.bookkeeper.ledger_writer import AppendListener, AppendOutcome, LedgerWriter
from pybroker.bookkeeper.metadata_store import BookieAddress, BookieRegistry, LedgerMetadataStore
from pybroker.bookkeeper.options import BookKeeperOptions
from pybroker.bookkeeper.protocol.entry_format import DigestType, Entry
from pybroker.bookkeeper.quorums import Quorums

__all__ = [
    "AppendListener",
    "AppendOutcome",
    "BookKeeperClient",
    "BookKeeperError",
    "BookKeeperOptions",
    "BookieAddress",
    "BookieRegistry",
    "DigestType",
    "Entry",
    "LedgerMetadata",
    "LedgerMetadataStore",
    "LedgerReader",
    "LedgerState",
    "LedgerWriter",
    "Quorums",
]
