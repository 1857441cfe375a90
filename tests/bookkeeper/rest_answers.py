"""The REST answers about a topic, so that those of two brokers can be compared.

Values that two correct brokers may show differently become markers: the ids of ledgers that only one owner has, addresses,
rates, and times that no broker stores. Everything else is compared as it is.
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from tests.differential.normalise import Json, flatten

NAMESPACE_PREFIX = "public/"
_POSITION = re.compile(r"(?<![\d:])(?<!(?<!\.)\.)(\d+):(-?\d+)(?![\d:])")
"""Also behind two dots, in a range; not a port behind the last number of an address."""
_LEDGER_FIELDS = {"ledgerId", "ledger"}
_OWN_LEDGERS = {"cursorLedger", "cursorsLedgerId", "cursorLedgerId"}
"""Ledgers that each owner of a topic creates for itself."""
_OF_THE_BROKER = re.compile(
    r"^(ownerBroker|brokerName|msgRate\w*|msgThroughput\w*|messageAckRate|averageMsgSize|address|connectedSince|clientVersion"
    r"|statGeneratedAt|version|metadata\.version)$"
)
"""Values that depend on the broker and on the time of the call."""
_TIMES_OF_THE_OWNER = re.compile(
    r"^(lastLedgerCreatedTimestamp|lastLedgerSwitchTimestamp|lastConsumed\w*|lastAcked\w*|lastMarkDelete\w*|first\w*Timestamp"
    r"|modificationDate|lastCompaction\w*Time\w*|lastUpdated|lastExpireTimestamp|oldestBacklogMessageAgeSeconds)$"
)


class TopicAnswers:
    """Asks one broker about one topic. `names`: what to show for ledger ids, by id; others are `new`."""

    def __init__(self, http_url: str, topic: str, subscriptions: list[str]) -> None:
        namespace, _, self._name = topic.removeprefix("persistent://").rpartition("/")
        self._topic = f"{http_url}/admin/v2/persistent/{namespace}/{quote(self._name, safe='')}"
        self._schemas = f"{http_url}/admin/v2/schemas/{namespace}/{quote(self._name, safe='')}"
        self._subscriptions = subscriptions

    def ledger_ids(self) -> list[int]:
        """Return the ledgers in the list of the managed ledger, which is that of an open topic."""
        _, _, shown = fetch("GET", f"{self._topic}/internalStats")
        return [row["ledgerId"] for row in shown["ledgers"]]

    def all(self, names: Mapping[int, str]) -> dict[str, Json]:
        """Return the leaves of all answers, by call and path."""
        leaves: dict[str, Json] = {}
        for label, method, url, body in self._calls():
            status, headers, content = fetch(method, url, body)
            shown = {"status": status, **headers}
            if status < 400:
                shown["body"] = content
            leaves |= {f"{label}: {path}": leaf for path, leaf in flatten(_without_own(shown, names)).items()}
        return leaves

    def _calls(self) -> Iterator[tuple[str, str, str, object]]:
        measured = "getPreciseBacklog=true&subscriptionBacklogSize=true&getEarliestTimeInBacklog=true"
        paths = [
            f"/stats?{measured}",
            "/stats",
            "/internalStats",
            "/internalStats?metadata=true",
            "/internal-info",
            "/subscriptions",
            "/properties",
            "/lastMessageId",
            "/compaction",
            "/partitions",
            "/messageid/0",
        ]
        for start in ("earliest", "latest"):
            paths += [f"/examinemessage?initialPosition={start}&messagePosition={number}" for number in (1, 2, 7)]
        for subscription in self._subscriptions:
            escaped = quote(subscription, safe="")
            paths.append(f"/subscription/{escaped}/properties")
            paths += [f"/subscription/{escaped}/position/{number}" for number in (1, 2, 7)]
        for path in paths:
            yield f"GET {path}", "GET", self._topic + path, None
        for subscription in self._subscriptions:
            path = f"/subscription/{quote(subscription, safe='')}/analyzeBacklog"
            yield f"POST {path}", "POST", self._topic + path, {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
        earliest = {"ledgerId": -1, "entryId": -1}
        yield "PUT /backlogSize", "PUT", f"{self._topic}/backlogSize", earliest
        for path in ("/schema", "/schemas", "/metadata", "/schema/0"):
            yield f"GET schemas {path}", "GET", self._schemas + path, None


class PartitionedAnswers:
    """The calls about all partitions together."""

    def __init__(self, http_url: str, topic: str) -> None:
        namespace, _, name = topic.removeprefix("persistent://").rpartition("/")
        self._topic = f"{http_url}/admin/v2/persistent/{namespace}/{quote(name, safe='')}"

    def all(self, names: Mapping[int, str]) -> dict[str, Json]:
        leaves: dict[str, Json] = {}
        for path in (
            "/partitions",
            "/partitioned-stats",
            "/partitioned-stats?getPreciseBacklog=true&subscriptionBacklogSize=true&getEarliestTimeInBacklog=true",
            "/partitioned-internalStats",
            "/subscriptions",
            "/properties",
            "/lastMessageId",
            "/compaction",
        ):
            status, headers, content = fetch("GET", self._topic + path)
            shown = {"status": status, **headers}
            if status < 400:
                shown["body"] = content
            leaves |= {
                f"GET {path}: {leaf_path}": leaf for leaf_path, leaf in flatten(_without_own(shown, names)).items()
            }
        return leaves


def fetch(method: str, url: str, body: object = None) -> tuple[int, dict[str, str], Any]:
    """Return the status, Pulsar's headers, and the body: as JSON, or a digest of other content."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        content = answer.read()
    headers = {name.lower(): value for name, value in answer.headers.items() if name.lower().startswith("x-pulsar")}
    try:
        return answer.status, headers, json.loads(content) if content else None
    except ValueError:
        return answer.status, headers, f"{len(content)} bytes, {hashlib.sha256(content).hexdigest()[:16]}"


def _without_own(value: Any, names: Mapping[int, str], field: str = "") -> Json:
    if isinstance(value, dict):
        rest = {key: each for key, each in value.items() if key != "standstill"}
        if rest.get("ledgerId", "") not in names:  # The present owner has created the ledger, on bookies of its choice.
            rest |= {key: "of the owner" for key in ("timestamp", "metadata") if key in rest and "ledgerId" in rest}
        return {key: _without_own(each, names, key) for key, each in rest.items()}
    if isinstance(value, list):
        listed = sorted(value, key=str) if all(isinstance(each, str) for each in value) else value
        return [_without_own(each, names, field) for each in listed]
    if field in _OWN_LEDGERS:
        return "some" if isinstance(value, int) and value >= 0 else value
    if field in _LEDGER_FIELDS and isinstance(value, int) and value >= 0:
        return names.get(value, "new")
    if field == "CompactedTopicLedger":
        return "some"
    if _OF_THE_BROKER.match(field):
        return "of the broker"
    if _TIMES_OF_THE_OWNER.match(field):
        return "never" if value in (0, -1, "", None) else "some time"
    if field == "metadata" and isinstance(value, str):
        return _with_sorted_properties(value)
    if isinstance(value, str):
        return _POSITION.sub(lambda found: f"{names.get(int(found[1]), found[1])}:{found[2]}", value)
    return value  # type: ignore[no-any-return]


def _with_sorted_properties(metadata: str) -> str:
    """Return the text of a ledger's metadata without the marks of pybroker, and with a fixed order of its properties."""
    head, _, properties = metadata.partition("customMetadata={")
    kept = sorted(each for each in properties.rstrip("}").split(", ") if not each.startswith("pybroker/"))
    return f"{head}{kept}"
