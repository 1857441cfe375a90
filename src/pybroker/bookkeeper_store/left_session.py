"""Ends the ZooKeeper session that a killed broker process of the same data directory has left.

Otherwise values of that session, such as the ownership of bundles, would stay until the session times out. The session
is in a file of the data directory with its id and password, which only the owner can read.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.session_report import SessionEvent
from pybroker.runtime import logs
from pybroker.zookeeper.addresses import ServerAddresses
from pybroker.zookeeper.client import ClientOptions, ZooKeeperClient
from pybroker.zookeeper.errors import ZooKeeperError
from pybroker.zookeeper.session import SessionTicket

FILE_NAME = "metadata-session.json"
END_DEADLINE_S = 10.0


async def end_left_session(directory: Path, addresses: ServerAddresses, options: ClientOptions) -> None:
    """End the session that is recorded in the data directory, if there is one. A failure is logged; the session then
    ends by its timeout.
    """
    path = directory / FILE_NAME
    ticket = _read(path)
    if ticket is None:
        return
    try:
        await ZooKeeperClient.end_session(addresses, options, ticket, END_DEADLINE_S)
    except ZooKeeperError as error:
        logs.warning("metadata_session.earlier_not_ended", reason=str(error))
    else:
        path.unlink(missing_ok=True)
        logs.info("metadata_session.earlier_ended", session=f"{ticket.session_id:#x}")


def keep_session(store: MetadataStore, directory: Path) -> None:
    """Record the current session of `store` in the data directory, and later each new session."""

    def write() -> None:
        ticket = store.session_ticket
        if ticket is not None:
            write_session(directory, ticket)

    def session_changed(event: SessionEvent) -> None:
        if event is SessionEvent.RENEWED:
            write()

    write()
    store.listen(session_changed)


def forget_session(directory: Path) -> None:
    """Delete the recorded session from the data directory. The caller has ended the session."""
    (directory / FILE_NAME).unlink(missing_ok=True)


def _read(path: Path) -> SessionTicket | None:
    try:
        document = json.loads(path.read_text())
        return SessionTicket(int(document["sessionId"]), bytes.fromhex(document["password"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logs.warning("metadata_session.file_unreadable", path=path, reason=str(error))
        return None


def write_session(directory: Path, ticket: SessionTicket) -> None:
    """Record the session of `ticket` in the data directory. A failure is logged: after a kill, the next broker must
    then wait for the timeout of the session.
    """
    path = directory / FILE_NAME
    partial = path.with_name(path.name + ".partial")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps({"sessionId": ticket.session_id, "password": ticket.password.hex()}))
        partial.replace(path)
    except OSError as error:
        logs.warning("metadata_session.file_not_written", path=path, reason=str(error))
