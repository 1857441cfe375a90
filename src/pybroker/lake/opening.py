"""Creates the parts of a pipeline from its settings: table, row reading and planner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pybroker.client.access import Access, AccessRefused, access_by_parameters
from pybroker.errors import InvalidTopicName
from pybroker.lake.lake_pipeline import LakeOptions
from pybroker.lake.settings import LakeSettings, SettingsRefused
from pybroker.lake.table_format import LakeTable
from pybroker.lake.table_maintenance import MaintenanceOptions
from pybroker.lake.topic_planning import TopicSelection
from pybroker.model.names import TopicName
from pybroker.model.topic_patterns import InvalidPattern, UnsupportedPattern, pattern_in_namespace
from pybroker.reading.read_options import SourceOptions

KEEP_WITHOUT_NUMBER_MS = 3_600_000
"""Minimum age of deleted files in formats that keep files by age only.

Readers of an older version have this time to finish.
"""


def open_table(settings: LakeSettings, topics: Sequence[str] = ()) -> LakeTable:
    """Return the table of a pipeline, which need not exist yet. `topics` are the topics whose positions are loaded with
    the table (needed by Delta).
    """
    if settings.format == "iceberg":
        from pybroker.lake.iceberg.iceberg_format import IcebergTable, open_catalog  # noqa: PLC0415  (half a second)

        return IcebergTable(
            open_catalog(settings.catalog_name, catalog_properties(settings)),
            settings.table,
            settings.name,
            dict(settings.storage),
        )
    location = f"{settings.target.rstrip('/')}/{settings.table.strip('/')}"
    if settings.format == "delta":
        from pybroker.lake.delta.delta_table import DeltaLakeTable  # noqa: PLC0415

        return DeltaLakeTable(location, settings.name, topics, dict(settings.storage))
    from pybroker.lake.parquet import ParquetTable  # noqa: PLC0415

    return ParquetTable(location, settings.name, dict(settings.storage))


def catalog_properties(settings: LakeSettings) -> dict[str, str]:
    if settings.catalog:
        properties = dict(settings.catalog)
        if settings.target:
            properties.setdefault("warehouse", settings.target)
        return properties
    if "://" in settings.target and not settings.target.startswith("file://"):
        raise SettingsRefused(
            [
                "a target that is not a local directory needs a catalog: [catalog] in the file of --config, or --catalog KEY=VALUE"
            ]
        )
    directory = Path(settings.target.removeprefix("file://")).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}"}


def connection_values(settings: LakeSettings) -> dict[str, str]:
    try:
        access = access_by_parameters("", None, settings.auth_params, None)
    except AccessRefused as error:
        raise SettingsRefused([f"auth-params: {error}"]) from None
    values: dict[str, str | None] = {
        "url": settings.admin_url,
        "service_url": settings.service_url,
        "tls_trust_certs_file": settings.tls_trust_certs_file,
        "basic_user": access.basic_user,
        "oauth2_params": settings.auth_params if access.oauth2 is not None else None,
    }
    for key, secret in (("token", access.token), ("basic_password", access.basic_password)):
        if secret is not None:
            values |= {key: secret.text, f"{key}_file": secret.in_file, f"{key}_env": secret.in_environment}
    return {key: value for key, value in values.items() if value}


def source_options(settings: LakeSettings, access: Access) -> SourceOptions:
    return SourceOptions(access, settings.read_mode, Path(settings.data_directory) if settings.data_directory else None)


def selection(settings: LakeSettings) -> TopicSelection:
    skips_loss = settings.on_data_loss == "skip"
    try:
        if settings.topics:
            names = tuple(str(TopicName.parse(name)) for name in settings.topics)
            return TopicSelection(names, start=settings.start_place, skips_loss=skips_loss)
        namespace, pattern = pattern_in_namespace(settings.topics_pattern)
    except (InvalidTopicName, InvalidPattern, UnsupportedPattern) as error:
        raise SettingsRefused(
            [
                f"{error}; topics are persistent://TENANT/NAMESPACE/NAME, and only the name of --topics-pattern is an expression"
            ]
        ) from error
    return TopicSelection((), str(namespace), pattern, settings.start_place, skips_loss)


def lake_options(settings: LakeSettings, owner: str, *, takes_over: bool) -> LakeOptions:
    return LakeOptions(
        pipeline=settings.name,
        owner=owner,
        commit_bytes=settings.commit_bytes,
        target_file_bytes=settings.target_file_bytes,
        lease_ms=int(settings.lease * 1000),
        takes_over=takes_over,
        partitioning=settings.partitioning,
        compression=settings.compression,
        splits_columns=settings.on_incompatible == "new-column",
        storage_options=dict(settings.storage),
    )


def maintenance_options(settings: LakeSettings) -> MaintenanceOptions:
    return MaintenanceOptions(
        target_file_bytes=settings.target_file_bytes,
        keep_versions=settings.keep_snapshots,
        keep_ms=int(settings.keep_hours * 3_600_000) or (0 if settings.format == "iceberg" else KEEP_WITHOUT_NUMBER_MS),
        orphan_age_ms=int(settings.orphan_age_hours * 3_600_000),
        compression=settings.compression,
        storage_options=dict(settings.storage),
    )
