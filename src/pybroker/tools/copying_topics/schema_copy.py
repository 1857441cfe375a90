"""The copy of a topic's schema versions. The version numbers stay the same, because messages contain them."""

from __future__ import annotations

from collections.abc import Sequence

from pybroker.errors import StoreError
from pybroker.model.names import TopicName
from pybroker.schema.schema_storage import SchemaRecord, SchemaStorage

_DELETED = SchemaRecord(None, 0)


async def copy_schemas(sources: Sequence[SchemaStorage], target: SchemaStorage, topic: TopicName) -> int:
    """Copy the schema versions of a topic from the first source that has any, and return their number. Raises
    StoreError if a version has another schema in the target, or if another process changes the schemas there.
    """
    for source in sources:
        found = await source.read(source.topic_path(topic))
        if not found.next_version:
            continue
        path, records = target.topic_path(topic), dict(found.records)
        present = await target.read(path)
        for version, record in present.records:
            if version in records and records[version].schema != record.schema:
                raise StoreError(
                    f"version {version} of the schema of topic {topic} in the target differs from the version in the "
                    "source: delete the schema in the target"
                )
        for version in range(present.next_version, found.next_version):
            # Earlier versions than the first record are deleted.
            if not await target.append(path, version, records.get(version, _DELETED)):
                raise StoreError(
                    f"another process changed the schemas of topic {topic} in the target during the copy: copy again"
                )
        return len(records)
    return 0
