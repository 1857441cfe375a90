"""`pybroker metadata export`, `import` and `check`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from pybroker.cli.broker_settings import add_set_option, overrides_of, run_with_configuration
from pybroker.cli.exit_codes import EXIT_FAILED, EXIT_OK, say
from pybroker.cli.output import Output, output_of

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig
    from pybroker.metadata.metadata_store import MetadataStore

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  (it has no public name)

MAX_PATHS = 20
"""Maximum number of paths of differing documents in the text output; JSON output has all."""
METADATA_FILE, METADATA_MARK = "metadata.db", "metadata.end"
_REPORT_EVERY_S = 2.0
_KEY_OF_OPTION = {
    "cluster": "clusterName",
    "metadata_store": "metadataStoreUrl",
    "configuration_metadata_store": "configurationMetadataStoreUrl",
    "data": "dataDirectory",
}


class Use(Enum):
    """The use of a data directory by a command, also of a directory that has no metadata yet."""

    READ = "read"
    """Read a copy, because opening converts metadata of an earlier layout; refuse a new directory."""
    SIMULATE = "simulate"
    """Read a copy; treat a new directory as an empty one."""
    CHANGE = "change"
    """Change the metadata; create it in a new directory."""


def add_store_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration file of a broker (default: none)")
    add_set_option(parser)
    parser.add_argument("--cluster", metavar="NAME", help="name of the cluster (clusterName)")
    parser.add_argument("--metadata-store", metavar="URL", help="such as zk:host:2181/path (metadataStoreUrl)")
    parser.add_argument(
        "--configuration-metadata-store",
        metavar="URL",
        help="the store that several clusters share (configurationMetadataStoreUrl)",
    )
    parser.set_defaults(data=None)


def _add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def add_transfer_commands(commands: Commands) -> None:
    data_help = "data directory of a stopped broker, without --metadata-store (dataDirectory)"
    export = commands.add_parser("export", help="write tenants, policies, partitioned topics and schemas to a file")
    export.add_argument("file", type=Path, metavar="FILE", help="new file; it contains all settings, also credentials")
    add_store_options(export)
    export.add_argument("--data", metavar="DIR", help=data_help)
    _add_json_option(export)
    export.set_defaults(run=_in_loop(_export))

    importing = commands.add_parser("import", help="write the documents of a file to a metadata store; repeatable")
    importing.add_argument("file", type=Path, metavar="FILE", help="a file of `pybroker metadata export`")
    add_store_options(importing)
    importing.add_argument("--data", metavar="DIR", help=data_help)
    importing.add_argument(
        "--replace", action="store_true", help="overwrite documents with other content (default: keep and list them)"
    )
    importing.add_argument("--dry-run", action="store_true", help="show the changes without making them")
    _add_json_option(importing)
    importing.set_defaults(run=_in_loop(_import))

    check = commands.add_parser("check", help="find documents that brokers cannot use; changes nothing")
    add_store_options(check)
    check.add_argument("--data", metavar="DIR", help=data_help)
    _add_json_option(check)
    check.set_defaults(run=_in_loop(_check))


def store_configuration(options: argparse.Namespace) -> BrokerConfig:
    """Return the configuration with which to open the metadata store. Raises ConfigError."""
    from pybroker.config import Problems, read  # noqa: PLC0415

    problems = Problems()
    loaded = read(options.config, os.environ, overrides_of(options, _KEY_OF_OPTION, problems))
    problems.found += loaded.problems
    problems.raise_any()
    return loaded.config


Command = Callable[["BrokerConfig", argparse.Namespace, Output], Awaitable[int]]


def _in_loop(command: Command) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        import asyncio  # noqa: PLC0415

        from pybroker.errors import StoreError  # noqa: PLC0415
        from pybroker.local_store.data_directory import DataDirectoryInUse, ForeignDirectory  # noqa: PLC0415

        config, output = store_configuration(options), output_of(options)

        async def work() -> int:
            return await command(config, options, output)

        try:
            return asyncio.run(work())
        except (StoreError, DataDirectoryInUse, ForeignDirectory) as error:
            say(str(error))
        except OSError as error:
            say(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return EXIT_FAILED

    return lambda options: run_with_configuration(run, options)


@asynccontextmanager
async def _opened(config: BrokerConfig, use: Use = Use.READ) -> AsyncIterator[MetadataStore]:
    from pybroker.metadata.shared_metadata import shared_addresses  # noqa: PLC0415

    # Where ledgers are stored does not matter here.
    addresses = shared_addresses(config.replace(ledger_store="local"))
    async with AsyncExitStack() as opened:
        store = await (_open_shared(config) if addresses else _open_embedded(config, use, opened))
        opened.push_async_callback(store.close)
        yield store


async def _open_embedded(config: BrokerConfig, use: Use, opened: AsyncExitStack) -> MetadataStore:
    from pybroker.errors import StoreError  # noqa: PLC0415
    from pybroker.local_store.data_directory import DataDirectoryLock  # noqa: PLC0415
    from pybroker.metadata.memory_metadata_store import MemoryMetadataStore  # noqa: PLC0415
    from pybroker.metadata.sqlite_metadata_store import SqliteMetadataStore  # noqa: PLC0415

    directory = Path(config.data_directory)
    if use is not Use.CHANGE and not (directory / METADATA_FILE).exists():
        if use is Use.SIMULATE:
            return MemoryMetadataStore()
        raise StoreError(
            f"the directory {directory} contains no {METADATA_FILE}, so it is not the data directory of a broker: set --data "
            "to a data directory, or use --metadata-store"
        )
    lock = DataDirectoryLock(directory, is_only_looked_at=use is not Use.CHANGE)
    opened.callback(lock.release)
    if use is not Use.CHANGE:
        directory = _copied(directory, opened)
    return await SqliteMetadataStore.open(directory / METADATA_FILE, mark=directory / METADATA_MARK)


def _copied(directory: Path, opened: AsyncExitStack) -> Path:
    import shutil  # noqa: PLC0415
    import tempfile  # noqa: PLC0415

    copies = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="pybroker-")))
    for name in (METADATA_FILE, f"{METADATA_FILE}-wal", METADATA_MARK):
        if (directory / name).exists():
            shutil.copyfile(directory / name, copies / name)
    return copies


async def _open_shared(config: BrokerConfig) -> MetadataStore:
    from pybroker.metadata.shared_metadata import open_shared_documents  # noqa: PLC0415

    return await open_shared_documents(config)


class _Progress:
    """Writes the number of documents to stderr, on a terminal only."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._is_shown = sys.stderr.isatty()
        self._next_s = time.monotonic() + _REPORT_EVERY_S

    def __call__(self, done: int, total: int | None = None) -> None:
        if self._is_shown and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _REPORT_EVERY_S
            of_all = "" if total is None else f" of {total:,}"
            sys.stderr.write(f"\r\x1b[K{self._verb} {done:,}{of_all} documents")
            sys.stderr.flush()

    def end(self) -> None:
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


async def _export(config: BrokerConfig, options: argparse.Namespace, output: Output) -> int:
    from pybroker.metadata.transfer.exporting import export_documents  # noqa: PLC0415

    if options.file.exists():
        say(f"{options.file} exists: give the name of a new file")
        return EXIT_FAILED
    progress = _Progress("exported")
    async with _opened(config) as store:
        count = await export_documents(store, config.cluster_name, options.file, progress)
    progress.end()
    if output.is_json:
        output.document({"file": str(options.file), "cluster": config.cluster_name, "documents": count})
    else:
        output.line(f"{count:,} documents of cluster {config.cluster_name} are in {options.file}.")
    return EXIT_OK


async def _import(config: BrokerConfig, options: argparse.Namespace, output: Output) -> int:
    from pybroker.metadata.transfer.importing import DocumentImport, importable_header, paths_told  # noqa: PLC0415

    importable_header(options.file, config.cluster_name)  # before a data directory is created or converted
    progress = _Progress("imported")
    async with _opened(config, Use.SIMULATE if options.dry_run else Use.CHANGE) as store:
        result = await DocumentImport(
            store,
            config.cluster_name,
            options.file,
            replaces=options.replace,
            is_dry_run=options.dry_run,
            progress=progress,
        ).run()
    progress.end()
    if output.is_json:
        output.document(
            {
                "dryRun": options.dry_run,
                "created": result.created,
                "replaced": result.replaced,
                "equal": result.equal,
                "kept": result.kept,
                "different": result.different,
            }
        )
        return EXIT_FAILED if result.different else EXIT_OK
    verb = "would be" if options.dry_run else "were"
    output.line(
        f"{result.created:,} documents {verb} created, {result.replaced:,} replaced; {result.equal:,} are equal already."
    )
    if result.kept:
        output.line("The addresses of the cluster stay as they are in the store.")
    if result.different:
        output.line(f"{len(result.different):,} documents have other content in the store and stay as they are:")
        output.lines([f"  {path}" for path in paths_told(result.different, MAX_PATHS)])
        output.line("Import again with --replace to overwrite them.")
        return EXIT_FAILED
    return EXIT_OK


async def _check(config: BrokerConfig, _options: argparse.Namespace, output: Output) -> int:
    from pybroker.metadata.transfer.checking import problems  # noqa: PLC0415

    progress = _Progress("checked")
    errors = warnings = 0
    found = []
    async with _opened(config) as store:
        async for problem in problems(store, config.cluster_name, progress):
            errors += problem.is_error
            warnings += not problem.is_error
            if output.is_json:
                found.append({"path": problem.path, "problem": problem.text, "isError": problem.is_error})
            else:
                progress.end()
                output.line(f"{'error  ' if problem.is_error else 'warning'}  {problem.path} {problem.text}")
    progress.end()
    if output.is_json:
        output.document({"errors": errors, "warnings": warnings, "problems": found})
    else:
        output.line(f"{errors:,} errors, {warnings:,} warnings.")
    return EXIT_FAILED if errors else EXIT_OK
