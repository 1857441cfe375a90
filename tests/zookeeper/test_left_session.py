"""A later process ends the session that an earlier one left."""

from __future__ import annotations

from pathlib import Path

from tests.support.zookeeper_server import ZooKeeperServer

from pybroker.bookkeeper_store.left_session import FILE_NAME, end_left_session, write_session
from pybroker.metadata.zookeeper_metadata_store import ZooKeeperMetadataStore
from pybroker.zookeeper import ClientOptions, ServerAddresses

OPTIONS = ClientOptions(session_timeout_ms=10_000)


async def test_earlier_session_is_ended(server: ZooKeeperServer, chroot: ServerAddresses, tmp_path: Path) -> None:
    first = await ZooKeeperMetadataStore.open(chroot, OPTIONS, 30)
    write_session(tmp_path, first.session_ticket)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o077 == 0
    await first.put_for_session("/namespace/a/b/0x0", b"x")
    second = await ZooKeeperMetadataStore.open(chroot, OPTIONS, 30)
    assert await second.get("/namespace/a/b/0x0") is not None
    await end_left_session(tmp_path, chroot, OPTIONS)
    await second.sync()
    assert await second.get("/namespace/a/b/0x0") is None
    assert not (tmp_path / FILE_NAME).exists()
    # A session that the server does not know any more.
    write_session(tmp_path, second.session_ticket)
    await second.close()
    await end_left_session(tmp_path, chroot, OPTIONS)
    assert not (tmp_path / FILE_NAME).exists()
    # A file that cannot be read.
    (tmp_path / FILE_NAME).write_text("{")
    await end_left_session(tmp_path, chroot, OPTIONS)
    await first.close()
