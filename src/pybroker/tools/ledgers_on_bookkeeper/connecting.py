"""Connects a command of `pybroker ledger` to ZooKeeper and the bookies, and runs it."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pybroker.bookkeeper import BookKeeperClient, BookKeeperError, BookKeeperOptions
from pybroker.bookkeeper.errors import NoSuchLedger
from pybroker.bookkeeper.zookeeper_metadata import ZooKeeperBookies, ZooKeeperLedgerMetadata
from pybroker.config import BrokerConfig, ConfigError
from pybroker.errors import StoreError
from pybroker.metadata.shared_metadata import client_options, parse_url
from pybroker.runtime.clock import Clock
from pybroker.tools.items import Item, item_text
from pybroker.zookeeper import ZooKeeperClient, ZooKeeperError

EXIT_OK = 0
EXIT_FOUND = 1
"""Exit code for damaged or unreadable entries, or missing copies."""
EXIT_NOT_USABLE = 2
"""Exit code if the ledger does not exist, or ZooKeeper or the bookies cannot be reached."""
DEFAULT_ROOT = "/ledgers"
_SESSION_MS = 10_000
_BOOKIE_TIMEOUT_MS = 5_000


@dataclass(frozen=True, slots=True)
class LedgerTool:
    """The connections of a command. `write` prints one item."""

    zookeeper: ZooKeeperClient
    root: str
    client: BookKeeperClient
    write: Callable[[Item], None]


def run(
    config: BrokerConfig,
    root: str,
    timeout_s: float,
    *,
    is_json: bool,
    command: Callable[[LedgerTool], Awaitable[int]],
) -> int:
    """Connect, run `command`, and return its exit code. Raises ConfigError."""

    def write(item: Item) -> None:
        sys.stdout.write(f"{json.dumps(item) if is_json else item_text(item)}\n")

    async def connected() -> int:
        async with _connected(config, root, timeout_s, write) as tool:
            return await command(tool)

    try:
        return asyncio.run(connected())
    except NoSuchLedger as error:
        advice = f"Check the id, --metadata-store and --ledgers-root ({root})."
        sys.stderr.write(f"pybroker: {error} {advice} `pybroker ledger list` shows the ledgers that exist.\n")
    except ZooKeeperError as error:
        sys.stderr.write(
            f"pybroker: ZooKeeper cannot be used: {error}. Check --metadata-store, and that ZooKeeper runs.\n"
        )
    except (BookKeeperError, StoreError) as error:
        sys.stderr.write(f"pybroker: {error}\n")
    return EXIT_NOT_USABLE


@asynccontextmanager
async def _connected(
    config: BrokerConfig, root: str, timeout_s: float, write: Callable[[Item], None]
) -> AsyncIterator[LedgerTool]:
    addresses = parse_url("metadataStoreUrl", config.metadata_store_url)
    if addresses is None:
        raise ConfigError(
            "no metadata store is given: add --metadata-store zk:host:2181/path, or --config with metadataStoreUrl"
        )
    zookeeper = ZooKeeperClient(
        addresses, client_options(config.replace(metadata_store_session_timeout_millis=_SESSION_MS))
    )
    await zookeeper.start(timeout_s)
    bookies = ZooKeeperBookies(zookeeper, root)
    await bookies.start()
    options = BookKeeperOptions(connect_timeout_ms=_BOOKIE_TIMEOUT_MS, read_timeout_ms=_BOOKIE_TIMEOUT_MS)
    client = BookKeeperClient(
        ZooKeeperLedgerMetadata(zookeeper, root), bookies, options, chance=random.SystemRandom(), clock=Clock()
    )
    try:
        yield LedgerTool(zookeeper, root, client, write)
    finally:
        await client.close()
        await bookies.close()
        await zookeeper.close()
