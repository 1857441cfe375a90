"""`pybroker metadata export`, `import` and `check`: options, output and exit codes."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pybroker.cli.broker_settings import run_with_configuration
from pybroker.cli.commands.cluster.metadata_store_options import add_store_options, configuration
from pybroker.cli.exit_codes import EXIT_FAILED, EXIT_OK, say
from pybroker.cli.output import Output, add_json_option, output_of

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig
    from pybroker.tools.moving_metadata.importing import Action, Import, Outcome

_PROGRESS_EVERY_S = 5.0
_Commands = Any  # argparse has no public name for the type of its sub-commands


def add_moving_commands(commands: _Commands) -> None:
    export = commands.add_parser(
        "export", help="write tenants, namespaces, policies and schemas of a store into a file"
    )
    export.add_argument("--to", type=Path, required=True, metavar="FILE", help="the file; an existing one is replaced")
    import_parser = commands.add_parser(
        "import",
        help="write the documents of a file into a store; can be repeated, and continues after an interruption",
    )
    import_parser.add_argument("file", type=Path, metavar="FILE", help="file of `pybroker metadata export`")
    import_parser.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing")
    different = import_parser.add_mutually_exclusive_group()
    different.add_argument(
        "--replace", action="store_true", help="replace documents that differ from those of the file"
    )
    different.add_argument("--keep", action="store_true", help="keep documents that differ, and create missing ones")
    import_parser.add_argument("--prune", action="store_true", help="delete documents that the file does not have")
    check = commands.add_parser("check", help="read all documents of a store and report what is wrong with them")
    for parser, run in ((export, _run_export), (import_parser, _run_import), (check, _run_check)):
        add_store_options(parser, may_be_embedded=True)
        add_json_option(parser, "write one JSON object per line")
        parser.set_defaults(run=_with_configuration(run))


class _Progress:
    """Writes the number of documents to stderr every few seconds."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._next_s = time.monotonic() + _PROGRESS_EVERY_S

    def __call__(self, count: int) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _PROGRESS_EVERY_S
            sys.stderr.write(f"{self._what} {count} documents\n")
            sys.stderr.flush()


def _with_configuration(
    run: Callable[[argparse.Namespace, BrokerConfig, Output], Coroutine[Any, Any, int]],
) -> Callable[[argparse.Namespace], int]:
    def run_command(options: argparse.Namespace) -> int:
        return run_with_configuration(lambda parsed: _run(run, parsed), options)

    return run_command


def _run(
    run: Callable[[argparse.Namespace, BrokerConfig, Output], Coroutine[Any, Any, int]], options: argparse.Namespace
) -> int:
    """Raises ConfigError."""
    import asyncio  # noqa: PLC0415  (so that --help answers at once)

    from pybroker.errors import StoreError  # noqa: PLC0415
    from pybroker.tools.data_files import NotUsable  # noqa: PLC0415
    from pybroker.tools.moving_metadata.export_file import FileRefused  # noqa: PLC0415

    try:
        return asyncio.run(run(options, configuration(options), output_of(options)))
    except FileRefused as error:
        say(f"{options.file} cannot be imported: {error}")
    except (StoreError, NotUsable, OSError) as error:
        say(str(error))
    return EXIT_FAILED


async def _run_export(options: argparse.Namespace, config: BrokerConfig, output: Output) -> int:
    from pybroker.tools.moving_metadata.connecting import configured_store, store_name  # noqa: PLC0415
    from pybroker.tools.moving_metadata.exporting import export_documents  # noqa: PLC0415

    async with configured_store(config, is_changed=False) as store:
        summary = await export_documents(store, config.cluster_name, options.to, _Progress("read"))
    if output.is_json:
        output.record({"file": str(options.to), **summary._asdict()})
    else:
        output.line(
            f"{options.to}: {summary.documents} documents of cluster {summary.cluster}, from {store_name(config)}."
        )
    return EXIT_OK


async def _run_import(options: argparse.Namespace, config: BrokerConfig, output: Output) -> int:
    from pybroker.metadata.shared_metadata import write_layout  # noqa: PLC0415
    from pybroker.tools.moving_metadata.connecting import configured_store, store_name  # noqa: PLC0415
    from pybroker.tools.moving_metadata.export_file import FileRefused, verify  # noqa: PLC0415
    from pybroker.tools.moving_metadata.importing import Difference, Import  # noqa: PLC0415

    difference = Difference.KEEP if options.keep else Difference.REPLACE if options.replace else Difference.REFUSE
    with options.file.open("rb") as file:
        summary = verify(file)
        if summary.cluster != config.cluster_name:
            raise FileRefused(
                f"its cluster is {summary.cluster}, and clusterName is {config.cluster_name}. Prepare the store with"
                f" `pybroker metadata init --cluster {summary.cluster}`, and give --cluster {summary.cluster}"
            )
        async with configured_store(config, is_changed=not options.dry_run) as store:
            task = Import(store, file, config.cluster_name, difference, options.prune, _Progress("imported"))
            planned = await task.planned(_reporter(output, is_each=options.dry_run))
            _write_outcome(output, planned, "Plan")
            if planned.different:
                say(
                    f"nothing was changed: {planned.different} documents of {store_name(config)} differ from the file."
                    " Give --replace to replace them, or --keep to keep them"
                )
                return EXIT_FAILED
            if options.dry_run:
                return EXIT_OK
            if store.is_shared:
                await write_layout(store)
            await task.perform()
            return await _verified(task, output)


async def _verified(task: Import, output: Output) -> int:
    remaining = await task.remaining(_no_report)
    if remaining.created or remaining.replaced or remaining.different or remaining.deleted:
        say("some documents are not as in the file: a running broker changes them. Compare with --dry-run, then repeat")
        return EXIT_FAILED
    if output.is_json:
        output.record({"verified": remaining.equal, "kept": remaining.kept})
    else:
        output.line(f"Done: {remaining.equal} documents are as in the file; {remaining.kept} were kept.")
    return EXIT_OK


def _no_report(_path: str, _action: Action) -> None:
    """The documents were reported before."""


def _reporter(output: Output, *, is_each: bool) -> Callable[[str, Action], None]:
    """In text, a document that is only created is not worth a line, except in a dry run."""

    def report(path: str, action: Action) -> None:
        if output.is_json:
            output.record({"path": path, "action": str(action)})
        elif is_each or action != "create":
            output.line(f"{action:<14} {path}")

    return report


def _write_outcome(output: Output, outcome: Outcome, name: str) -> None:
    from dataclasses import asdict  # noqa: PLC0415

    numbers = asdict(outcome)
    if output.is_json:
        output.record({name.lower(): numbers})
        return
    words = {"created": "create", "replaced": "replace", "deleted": "delete", "kept": "keep", "equal": "equal"}
    words |= {"different": "different", "only_in_store": "only in the store"}
    told = ", ".join(f"{words[key]} {number}" for key, number in numbers.items() if number)
    output.line(f"{name}: {told or 'no documents'}.")


async def _run_check(_options: argparse.Namespace, config: BrokerConfig, output: Output) -> int:
    from pybroker.tools.moving_metadata.checking import check_documents  # noqa: PLC0415
    from pybroker.tools.moving_metadata.connecting import configured_store, store_name  # noqa: PLC0415
    from pybroker.tools.moving_metadata.document_rules import Severity  # noqa: PLC0415

    numbers = dict.fromkeys(Severity, 0)
    async with configured_store(config, is_changed=False, requires_cluster=False) as store:
        async for finding in check_documents(store, config.cluster_name, _Progress("checked")):
            numbers[finding.severity] += 1
            if output.is_json:
                output.record(finding._asdict())
            else:
                output.line(f"{finding.severity}: {finding.path}: {finding.text}")
    if output.is_json:
        output.record({"problems": numbers[Severity.PROBLEM], "notes": numbers[Severity.NOTE]})
    else:
        output.line(f"{store_name(config)}: {numbers[Severity.PROBLEM]} problems, {numbers[Severity.NOTE]} notes.")
    return EXIT_FAILED if numbers[Severity.PROBLEM] else EXIT_OK
