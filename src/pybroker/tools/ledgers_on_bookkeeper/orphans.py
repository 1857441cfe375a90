"""`pybroker ledger orphans`: the ledgers of a cluster that belong to no topic, schema or cursor. Deletes nothing."""

from __future__ import annotations

from pybroker.bookkeeper.inspection.orphan_rule import OrphanVerdict
from pybroker.bookkeeper.inspection.orphan_search import OrphanSearch
from pybroker.bookkeeper_store.orphans.named_ledgers import NamedLedgers
from pybroker.bookkeeper_store.orphans.orphaned_ledgers import orphan_rule
from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore
from pybroker.runtime.clock import Clock
from pybroker.tools.ledgers_on_bookkeeper.connecting import EXIT_OK, LedgerTool
from pybroker.tools.ledgers_on_bookkeeper.listing import ledger_item


async def list_orphans(tool: LedgerTool, cluster_name: str, min_age_ms: int) -> int:
    """Print each ledger of brokers of this cluster that no metadata document lists: as `kept` if the ledger is younger
    than `min_age_ms` or its age is unknown, otherwise as `orphan`. Print the reason, too. Return the exit code.

    Raises StoreError for a document that cannot be read, because it may list any ledger.
    """

    names = NamedLedgers(ZooKeeperMetadataStore(tool.zookeeper))
    search = OrphanSearch(tool.client, orphan_rule(cluster_name, min_age_ms), names, Clock())
    counts = dict.fromkeys(OrphanVerdict, 0)
    ledger_ids = await tool.client.list_ledgers()
    for found in await search.run(ledger_ids):
        counts[found.verdict] += 1
        if found.verdict is not OrphanVerdict.NAMED:
            item = ledger_item(found.ledger_id, found.metadata)
            is_orphaned = found.verdict is OrphanVerdict.ORPHANED
            item |= {"kind": "orphan" if is_orphaned else "kept", "reason": found.verdict.value}
            tool.write(item)
    tool.write(
        {
            "kind": "summary",
            "ledgers": len(ledger_ids),
            "of_this_cluster": sum(counts.values()),
            "orphans": counts[OrphanVerdict.ORPHANED],
            "young": counts[OrphanVerdict.YOUNG],
            "named": counts[OrphanVerdict.NAMED],
            "without_age": counts[OrphanVerdict.WITHOUT_AGE],
        }
    )
    return EXIT_OK
