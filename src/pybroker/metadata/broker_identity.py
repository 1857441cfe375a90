"""The broker's id (host:port) in the metadata store of a cluster: the broker claims it, so that no other broker uses
it.

The claim is a session value. When the session is lost, the store deletes it, and another broker may take the id. In the
next session the broker claims it again:

* A claim of an earlier process or session with the same data directory is replaced: the directory has a lock, so no
  other process uses it.
* If another broker has the id, this broker is not ready (`conflict` says why) and repeats the claim until that broker
  stops. Its loaded topics continue, because their ledgers are in its own data directory.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from pybroker.errors import BadVersionError, MetadataUnavailable, StoreError, UnknownOutcome
from pybroker.metadata.metadata_store import MetadataStore
from pybroker.metadata.session_report import SessionEvent
from pybroker.runtime import logs
from pybroker.runtime.runtime import Runtime
from pybroker.runtime.tasks import TaskOwner

BROKERS_PATH = "/pybroker/brokers"
"""Parent of one session value for each running broker, by its id: two brokers cannot have the same one."""
DIRECTORY_ID_PATH = "/local-store/directory-id"
"""In the embedded store: identifies this data directory."""
CLAIM_PAUSE_S = 1.0
"""Pause between two claims after a lost session, while another broker has the id or the store is unreachable."""
_RACE_ATTEMPTS = 10


class BrokerIdentity:
    """The broker's id in a shared store. Call `claim` first; after a lost session the object claims the id again, until
    `close`.
    """

    def __init__(self, store: MetadataStore, broker_id: str, directory_id: str, facts: Mapping[str, object]) -> None:
        self._store = store
        self._path = f"{BROKERS_PATH}/{broker_id}"
        self._broker_id = broker_id
        self.directory_id = directory_id
        self._value = json.dumps({**facts, "directoryId": directory_id}).encode()
        self._tasks = TaskOwner("broker-identity")
        self._must_claim = False
        self._is_claiming = False
        self.conflict = ""
        """Why this broker must not take clients: another broker has its id. Empty without a conflict."""

    async def claim(self, deadline_s: float) -> None:
        """Claim the broker's id, and retry after a lost session. Raises StoreError if another broker has the id, or if
        no attempt succeeds within `deadline_s` seconds.
        """
        try:
            async with asyncio.timeout(deadline_s):
                holder = await self._first_claim()
        except TimeoutError as error:
            raise MetadataUnavailable(
                f"the broker could not claim its id {self._broker_id} within {deadline_s:g} s, because it lost "
                "its sessions with the metadata store"
            ) from error
        if holder is not None:
            raise StoreError(
                f"another broker has the id {self._broker_id}: {holder}. Give each broker its own "
                "advertisedAddress and webServicePort. If the other broker was just killed, wait until its "
                "session with the metadata store ends"
            )
        self._store.listen(self._session_changed)

    async def _first_claim(self) -> str | None:
        while True:
            try:
                return await self._claim_or_holder()
            except (MetadataUnavailable, UnknownOutcome) as error:
                logs.warning("broker_id.claim_failed", broker_id=self._broker_id, error=str(error))
                await asyncio.sleep(CLAIM_PAUSE_S)

    async def _claim_or_holder(self) -> str | None:
        """Claim the id.

        Return None on success, otherwise the description of the broker that has it. Raises StoreError.
        """
        for _ in range(_RACE_ATTEMPTS):
            try:
                await self._store.put_for_session(self._path, self._value)
            except BadVersionError:
                found = await self._store.get(self._path)
                if found is None:
                    continue
                holder = _decoded_holder(found.value)
                if holder.get("directoryId") != self.directory_id:
                    return str(holder or "its description cannot be read")
                try:
                    await self._store.delete(self._path, found.version)
                except BadVersionError:
                    continue
            else:
                return None
        raise StoreError(
            f"several brokers claim the id {self._broker_id} at the same time: give each broker its own "
            "advertisedAddress and webServicePort"
        )

    def _session_changed(self, event: SessionEvent) -> None:
        if event is SessionEvent.RENEWED:
            self._must_claim = True
            if not self._is_claiming:
                self._is_claiming = True
                self._tasks.start(self._claim_again(), "claim")

    async def _claim_again(self) -> None:
        try:
            while self._must_claim:
                self._must_claim = False
                try:
                    self._take(await self._claim_or_holder())
                except StoreError as error:
                    logs.warning("broker_id.claim_failed", broker_id=self._broker_id, error=str(error))
                    self._must_claim = True
                if self._must_claim:
                    await asyncio.sleep(CLAIM_PAUSE_S)
        finally:
            self._is_claiming = False

    def _take(self, holder: str | None) -> None:
        if holder is None:
            self.conflict = ""
            logs.info("broker_id.claimed", broker_id=self._broker_id)
            return
        self._must_claim = True
        if not self.conflict:
            logs.error(
                "broker_id.taken", broker_id=self._broker_id, holder=holder, action="stop one of the two brokers"
            )
        self.conflict = (
            f"another broker has taken the id {self._broker_id} while the session with the metadata store was lost: {holder}."
            " Stop one of the two brokers, and give each its own advertisedAddress and webServicePort"
        )

    async def close(self) -> None:
        await self._tasks.close()


def _decoded_holder(value: bytes) -> dict[str, object]:
    try:
        found = json.loads(value)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def directory_id(stored: bytes | None, runtime: Runtime) -> str:
    """Return the id of the data directory: `stored`, or a new random id if `stored` is None."""
    return f"{runtime.random.getrandbits(128):032x}" if stored is None else stored.decode(errors="replace")


async def keep_directory_id(embedded: MetadataStore, identity: str) -> None:
    """Store `identity` as the id of the data directory in the embedded metadata store of that directory, unless an id
    is stored already.
    """
    if await embedded.get(DIRECTORY_ID_PATH) is None:
        await embedded.put(DIRECTORY_ID_PATH, identity.encode())
