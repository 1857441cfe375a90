"""The registry of pipelines.

A pipeline is a module with `add_options(parser)` and `run(options, parser, connect)`, which returns the exit code.
Modules are imported when their pipeline is used, so a missing library affects only the pipelines that need it. The
command line parses the options that select the broker, and passes the result as `connect`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline, as listed in `pybroker pipeline --help`."""

    name: str
    module: str
    help: str
    needs: tuple[str, ...] = ()
    """Libraries that the pipeline imports. If one is missing, the error names the extra to install."""
    extra: str = "tables"


PIPELINES = (
    Pipeline(
        "lake",
        "pybroker.pipelines.lake",
        "topics into Iceberg, Delta or Parquet tables, exactly once",
        ("pyarrow", "numpy", "fsspec", "pyiceberg", "deltalake"),
    ),
    Pipeline("replay", "pybroker.pipelines.replay", "a time range of a topic into another topic", ("pyarrow", "numpy")),
    Pipeline(
        "key-skew",
        "pybroker.pipelines.key_skew",
        "which keys would be hot on which consumer of a Key_Shared subscription",
        ("pyarrow", "numpy"),
    ),
    Pipeline(
        "schema-audit",
        "pybroker.pipelines.schema_audit",
        "schema versions of messages, and messages that cannot be read",
        ("pyarrow", "numpy"),
    ),
    Pipeline(
        "dlq-triage",
        "pybroker.pipelines.dlq_triage",
        "dead letters by reason, origin and key",
        ("pyarrow", "numpy"),
    ),
)


class ExtraMissing(Exception):
    """A library that the pipeline needs is not installed. The text contains the command that installs it."""


def load(pipeline: Pipeline) -> ModuleType:
    try:
        return import_module(pipeline.module)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in pipeline.needs:
            raise
        raise ExtraMissing(
            f"the pipeline {pipeline.name} needs the package {missing}, which is not installed: run pip "
            f"install 'pybroker[{pipeline.extra}]'"
        ) from error


def add_pipelines(parser: argparse.ArgumentParser) -> None:
    """Add a command for each pipeline. The options are added only for the pipeline that the command line selects."""
    commands = parser.add_subparsers(title="pipelines", required=True, metavar="PIPELINE", dest="pipeline")
    for pipeline in PIPELINES:
        commands.add_parser(pipeline.name, help=pipeline.help, add_help=False)


def module_of(name: str) -> ModuleType:
    return load({pipeline.name: pipeline for pipeline in PIPELINES}[name])
