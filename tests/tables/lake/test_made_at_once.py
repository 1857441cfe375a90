"""Two processes that make the same Iceberg table at the same moment."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.tables.lake.tables import open_table

SCHEMA = pa.schema([("a", pa.int64())])


def test_a_namespace_that_another_process_makes_at_the_same_moment_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog has looked, and found none, before the other one wrote."""
    other = open_table("iceberg", tmp_path)
    other.create(SCHEMA, None)
    other.close()
    late = open_table("iceberg", tmp_path)
    looks = iter([False])
    really = SqlCatalog.namespace_exists
    monkeypatch.setattr(
        SqlCatalog, "namespace_exists", lambda self, name: next(looks, None) is None and really(self, name)
    )
    late.create(SCHEMA, None)
    assert late.load().schema.names == ["a"]
    late.close()
