"""REST requests about topics: partitions, names, schemas, and progress subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from pybroker.client.rest import Refused
from pybroker.columns.values.value_schema import SchemaInfo
from pybroker.errors import InvalidTopicName
from pybroker.model.names import TopicName
from pybroker.reading.entry_source import ReadingFailed, TopicMissing
from pybroker.schema.key_value_text import key_value_data
from pybroker.schema.schema_data import InvalidSchema

if TYPE_CHECKING:
    from pybroker.client.rest import RestClient
    from pybroker.reading.positions import Place

NOT_FOUND = 404
CONFLICT = 409


def parsed(topic: str) -> TopicName:
    try:
        name = TopicName.parse(topic)
    except InvalidTopicName as error:
        raise ReadingFailed(str(error)) from error
    if not name.is_persistent:
        raise ReadingFailed(
            f"topic {name} is not persistent, so its messages are not stored: only persistent topics can be read"
        )
    return name


def segments_of(name: TopicName) -> str:
    """Return `tenant/namespace/topic`, percent-encoded for the path of a REST call."""
    parts = (name.namespace.tenant, name.namespace.local_name, name.local_name)
    return "/".join(quote(part, safe="") for part in parts)


class RestTopics:
    """REST requests about topics to one broker."""

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest

    def partition_count(self, topic: TopicName) -> int:
        """Return the number of partitions; 0 for a topic without partitions. Raises TopicMissing."""
        try:
            answer = self._rest.json("GET", f"/admin/v2/persistent/{segments_of(topic)}/partitions")
        except Refused as error:
            if error.status == NOT_FOUND:
                raise TopicMissing(str(error), str(topic)) from error
            raise
        return int(answer["partitions"])

    def topics(self, namespace: str) -> list[str]:
        tenant, _, name = namespace.partition("/")
        if not tenant or not name or "/" in name:
            raise ReadingFailed(f"{namespace!r} is not a namespace: use the form tenant/namespace")
        path = f"/admin/v2/persistent/{quote(tenant, safe='')}/{quote(name, safe='')}"
        try:
            return sorted(str(topic) for topic in self._rest.json("GET", path))
        except Refused as error:
            if error.status == NOT_FOUND:
                raise TopicMissing(str(error)) from error
            raise

    def schema(self, topic: str, version: bytes | None) -> SchemaInfo | None:
        path = f"/admin/v2/schemas/{segments_of(parsed(topic))}/schema"
        if version is not None:
            path += f"/{int.from_bytes(version, 'big', signed=True)}"
        try:
            found = self._rest.json("GET", path)
        except Refused as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return _schema(topic, found)

    def show_progress(self, topic: str, subscription: str, place: Place) -> None:
        """Move the cursor of a durable subscription forward to the position `place`, never back. Create the
        subscription if needed. Raises TopicMissing.
        """
        name = parsed(topic)
        path = f"/admin/v2/persistent/{segments_of(name)}/subscription/{quote(subscription, safe='')}"
        # This request acknowledges all entries before `place`, and never moves the subscription back.
        before = {"ledgerId": place.ledger_id, "entryId": place.entry_id - 1}
        try:
            self._rest.json("POST", path + "/expireMessages", before)
        except Refused as error:
            if error.status != NOT_FOUND:
                raise
        else:
            return
        self.partition_count(
            name
        )  # Raises TopicMissing. Without this check, the PUT would create a deleted topic again.
        try:
            self._rest.json("PUT", path, {"ledgerId": place.ledger_id, "entryId": place.entry_id})
        except Refused as error:
            if error.status != CONFLICT:
                raise
            self._rest.json("POST", path + "/expireMessages", before)  # Another client has created it.


def _schema(topic: str, found: dict[str, object]) -> SchemaInfo:
    schema_type, text = str(found["type"]), str(found["data"])
    properties = found.get("properties")
    try:
        data = key_value_data(text) if schema_type == "KEY_VALUE" else text.encode()
    except InvalidSchema as error:
        raise ReadingFailed(f"the schema of topic {topic} cannot be read: {error}") from error
    shown = {str(key): str(value) for key, value in properties.items()} if isinstance(properties, dict) else {}
    return SchemaInfo(schema_type, data, shown, parsed(topic).local_name)
