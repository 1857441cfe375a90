"""Read leases of one process: requests to the broker not to delete ledgers that the process will read.

A lost lease (after a restart of the broker, or a pause of the process) causes no wrong result: the reader detects
trimmed entries.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pybroker.client.failures import ClientError
from pybroker.reading.rest_topics import parsed
from pybroker.runtime import logs

if TYPE_CHECKING:
    from pybroker.model.names import NamespaceName
    from pybroker.reading.positions import Place
    from pybroker.reading.read_options import SourceOptions

RENEWALS_PER_LEASE = 3
SHORTEST_RENEWAL_S = 0.2
TOPICS_AT_ONCE = 1000
RETRY_S = 1.0


class Leases:
    """The leases of an entry source. A thread renews them over a separate connection. Thread-safe."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.reader = f"reader-{uuid.uuid4().hex}"
        self._rest = options.rest_client()
        self._lock = threading.Lock()  # serializes requests, and protects `_places`
        self._places: dict[NamespaceName, dict[str, Place]] = {}
        self._renew_after_s = RETRY_S
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, places: Mapping[str, Place]) -> None:
        """Take leases on these topics or partitions: the broker keeps their entries from these positions on, until
        `close`. Raises ReadingFailed.
        """
        with self._lock:
            asked: dict[NamespaceName, dict[str, Place]] = {}
            for topic, place in places.items():
                name = parsed(topic)
                asked.setdefault(name.namespace, {})[name.local_name] = place
            for namespace, topics in asked.items():
                self._ask(namespace, topics)
                self._places.setdefault(namespace, {}).update(topics)
            if self._thread is None and self._places:
                self._thread = threading.Thread(target=self._renew, name="read-leases", daemon=True)
                self._thread.start()

    def holds(self, topic: str) -> bool:
        name = parsed(topic)
        return name.local_name in self._places.get(name.namespace, ())

    def close(self) -> None:
        self._closing.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        with self._lock:
            for namespace in self._places:
                try:
                    self._rest.json("DELETE", f"{_base(namespace)}/{self.reader}", patience_s=0)
                except ClientError as error:
                    logs.info("leases.release_failed", reason=str(error))  # they expire
            self._places.clear()
            self._rest.close()

    def _renew(self) -> None:
        wait_s = self._renew_after_s
        while not self._closing.wait(wait_s):
            try:
                with self._lock:
                    for namespace, topics in self._places.items():
                        self._ask(namespace, topics)
                wait_s = self._renew_after_s
            except ClientError as error:
                logs.warning("leases.renewal_failed", reason=str(error))
                wait_s = RETRY_S

    def _ask(self, namespace: NamespaceName, topics: Mapping[str, Place]) -> None:
        items = list(topics.items())
        for start in range(0, len(items), TOPICS_AT_ONCE):
            part = [{"topic": name, "start": place} for name, place in items[start : start + TOPICS_AT_ONCE]]
            body = {"reader": self.reader, "topics": part}
            for shown in self._rest.json("POST", _base(namespace), body, patience_s=self._patience_s())["topics"]:
                self._answered(namespace, shown)

    def _answered(self, namespace: NamespaceName, shown: dict[str, Any]) -> None:
        topic = f"{namespace}/{shown['topic']}"
        if shown.get("status", 200) != 200:
            # Reading continues without a lease: the reader detects trimmed entries.
            logs.warning("lease.refused", topic=topic, status=shown["status"], reason=shown["reason"])
            return
        lasts_s = shown.get("endsInMillis", 0) / 1000
        self._renew_after_s = max(SHORTEST_RENEWAL_S, lasts_s / RENEWALS_PER_LEASE)

    def _patience_s(self) -> float:
        return min(self._options.patience_s, self._renew_after_s)


def _base(namespace: NamespaceName) -> str:
    return (
        f"/admin/v3/entries/persistent/{quote(namespace.tenant, safe='')}/{quote(namespace.local_name, safe='')}/leases"
    )
