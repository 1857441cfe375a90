"""Settings of a `lake` pipeline, from options or a TOML file, validated before any resource is opened.

    topics = ["persistent://public/default/orders"]
    format = "iceberg"
    table = "shop.orders"
    target = "/data/lake"
    partition-by = "publish-hour"

    [catalog]                      # any catalog of pyiceberg; without it SQLite beside the tables
    type = "rest"
    uri = "https://catalog.example.com"

    [storage]                      # options of fsspec, such as those of s3fs

Options of the command line override the file. Values of [catalog] and [storage] are never shown.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pybroker.columns.bad_records import BadRecords, MissingFields
from pybroker.lake.partitioning import Partitioning, parse_partitioning
from pybroker.lake.progress import check_pipeline_name
from pybroker.reading.quantities import size_bytes, time_ms
from pybroker.reading.read_options import MODES

OF_CONNECTION = ("admin_url", "service_url", "auth_params", "tls_trust_certs_file")
"""Settings in a file that select the broker. The command line has the usual connection options instead."""
FORMATS = ("iceberg", "delta", "parquet")
MAX_WORKERS = 64


class SettingsRefused(ValueError):
    """Invalid settings, with one line for each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class LakeSettings:
    """All settings with their defaults. Sizes in bytes, times in seconds."""

    topics: tuple[str, ...] = ()
    topics_pattern: str = ""
    """Only the local name is a regular expression: persistent://public/default/orders-.*"""
    format: str = "iceberg"
    table: str = ""
    """Iceberg: namespace.name; Delta and Parquet: a path below the target."""
    target: str = ""
    """A path or URL of fsspec: the warehouse of Iceberg, the directory of the other formats."""
    name: str = "main"
    """Name of the pipeline, under which the table stores positions and lease."""
    start: str = "earliest"
    """earliest, latest, or a time such as 2026-11-23T04:00:00Z or milliseconds since 1970."""
    partition_by: str = "none"
    columns: tuple[str, ...] = ()
    value_mode: str = "auto"
    bad_records: str = "fail"
    missing_fields: str = "fail"
    """The treatment of a nullable Avro field without a default that an older message's schema lacks: `fail` or
    `null`."""
    on_data_loss: str = "fail"
    on_incompatible: str = "fail"
    """fail, or new-column: a column with an incompatible new type gets a separate column, such as count__string."""
    rename: tuple[str, ...] = ()
    """new=old: columns with another name in the table."""
    admin_url: str = ""
    service_url: str = ""
    auth_params: str = field(default="", repr=False)
    """A token as token:..., file:/path or env:NAME; or JSON with userId and password."""
    tls_trust_certs_file: str = ""
    read_mode: str = "auto"
    data_directory: str = ""
    progress_subscription: str = ""
    commit_bytes: int = 512 << 20
    target_file_bytes: int = 256 << 20
    compression: str = "zstd"
    workers: int = 2
    interval: float = 10.0
    lease: float = 300.0
    keep_snapshots: int = 50
    keep_hours: float = 0.0
    merge_small_files: bool = True
    orphan_age_hours: float = 24.0
    catalog_name: str = "pybroker"
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)
    storage: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def partitioning(self) -> Partitioning | None:
        return parse_partitioning(self.partition_by)

    @property
    def start_place(self) -> str | int:
        """The configured start: `earliest`, `latest`, or milliseconds since 1970."""
        return _start(self.start)

    @property
    def renames(self) -> dict[str, str]:
        return dict(pair.split("=", 1) for pair in self.rename)


_SIZES = ("commit_bytes", "target_file_bytes")
_CHOICES = {
    "format": FORMATS,
    "value_mode": ("auto", "raw"),
    "bad_records": tuple(each.value for each in BadRecords),
    "missing_fields": tuple(each.value for each in MissingFields),
    "on_incompatible": ("fail", "new-column"),
    "on_data_loss": ("fail", "skip"),
    "read_mode": MODES,
    "compression": ("zstd", "snappy", "lz4", "gzip", "none"),
}
_LEAST = {
    "workers": 1,
    "interval": 0.01,
    "lease": 5,
    "keep_snapshots": 1,
    "keep_hours": 0,
    "orphan_age_hours": 0,
    "commit_bytes": 1,
    "target_file_bytes": 1 << 16,
}


def load_settings(file: Path | None, overrides: Mapping[str, Any], *, needs_topics: bool = True) -> LakeSettings:
    """Load settings from a TOML file and the command line (`overrides`; None: not set). Raises SettingsRefused.

    Without `needs_topics`, the settings need not name a topic.
    """
    problems: list[str] = []
    values: dict[str, Any] = {}
    known = {f.name: f for f in fields(LakeSettings)}
    if file is not None:
        try:
            document = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsRefused([f"{file}: {error}"]) from error
        for key, value in document.items():
            name = key.replace("-", "_")
            if name not in known:
                meant = get_close_matches(name, known, 1)
                hint = f" (did you mean {meant[0].replace('_', '-')}?)" if meant else ""
                problems.append(f"{file}: unknown setting {key}{hint}")
                continue
            values[name] = value
    values.update({name: value for name, value in overrides.items() if value is not None and name in known})
    for name in list(values):
        try:
            values[name] = _typed(name, values[name], type(known[name].default))
        except ValueError as error:
            problems.append(str(error))
            del values[name]
    settings = LakeSettings(**values)
    problems += _contradictions(settings, needs_topics)
    if problems:
        raise SettingsRefused(problems)
    return settings


def _typed(name: str, value: Any, kind: type) -> Any:
    option = "--" + name.replace("_", "-")
    if name in _SIZES:
        try:
            value = size_bytes(str(value))
        except ValueError:
            raise ValueError(f"{option} {value!r} is invalid: use a number of bytes, such as 512m") from None
    elif name in ("catalog", "storage"):
        if not isinstance(value, Mapping):
            raise ValueError(f"the section [{name}] must be a table of keys and values")
        return {key: str(inner) if name == "catalog" else inner for key, inner in value.items()}
    elif kind is tuple:
        value = (value,) if isinstance(value, str) else tuple(str(part) for part in value)
    elif kind is bool:
        if not isinstance(value, bool):
            value = {"yes": True, "true": True, "no": False, "false": False}.get(str(value).lower())
            if value is None:
                raise ValueError(f"{option}: yes or no")
    elif kind in (int, float):
        try:
            value = kind(value)
        except (TypeError, ValueError):
            raise ValueError(f"{option} {value!r} is invalid: use a number") from None
    else:
        value = str(value)
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ValueError(f"{option} {value!r} is invalid: use one of {', '.join(_CHOICES[name])}")
    if name in _LEAST and value < _LEAST[name]:
        raise ValueError(f"{option} {value} is too small: it must be at least {_LEAST[name]}")
    return value


def _contradictions(settings: LakeSettings, needs_topics: bool) -> list[str]:
    problems = []
    is_named = bool(settings.topics) or bool(settings.topics_pattern)
    if (settings.topics and settings.topics_pattern) or (needs_topics and not is_named):
        problems.append("either --topic (once or more) or --topics-pattern is needed")
    if not settings.table:
        problems.append("--table is needed: namespace.name for Iceberg, else a path below --target")
    elif settings.format == "iceberg" and "." not in settings.table.strip("."):
        problems.append(
            f"--table {settings.table!r}: an Iceberg table has a namespace, such as events.{settings.table}"
        )
    elif settings.format != "iceberg" and (settings.table.startswith("/") or ".." in settings.table.split("/")):
        problems.append(f"--table {settings.table!r}: a path below --target")
    if not settings.target and not settings.catalog:
        problems.append("--target is needed: the directory or URL of the tables")
    if settings.workers > MAX_WORKERS:
        problems.append(f"--workers {settings.workers}: at most {MAX_WORKERS}")
    for check, value in (
        (check_pipeline_name, settings.name),
        (parse_partitioning, settings.partition_by),
        (_start, settings.start),
    ):
        try:
            check(value)
        except ValueError as error:
            problems.append(str(error))
    problems += [f"--rename {pair!r}: new=old" for pair in settings.rename if "=" not in pair]
    return problems


def _start(text: str) -> str | int:
    if text in ("earliest", "latest"):
        return text
    try:
        return time_ms(text)
    except ValueError:
        raise ValueError(
            f"--start {text!r} is invalid: use earliest, latest, a time such as 2026-11-23T04:00:00Z, or "
            "milliseconds since 1970"
        ) from None
