"""`pybroker restore`: Create a data directory from a backup."""

from __future__ import annotations

import argparse
from pathlib import Path

from pybroker.cli.commands.data_directory.backup import ProgressReport, add_copy_options, rate_of, run_told
from pybroker.cli.exit_codes import EXIT_OK
from pybroker.cli.output import add_json_option, output_of
from pybroker.cli.parsing import described
from pybroker.cli.text_tables import moment, size

EXAMPLES = """
pybroker restore /backups/broker-1 --data data
pybroker restore /backups/broker-1 --data data --point 20261127T060000.000Z-0123abcd
pybroker serve --data data                           afterwards
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    parser.add_argument("backup", type=Path, metavar="BACKUP", help="directory of the backup")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", required=True, help="the new data directory; empty or missing"
    )
    parser.add_argument(
        "--point",
        default="",
        metavar="NAME",
        help="restore point, as `pybroker backup BACKUP --list` shows it (default: newest)",
    )
    add_copy_options(parser)
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from pybroker.backup.restore import restore  # noqa: PLC0415  (so that --help answers at once)

    progress = ProgressReport(options, None)
    try:
        result = run_told(restore, options.backup, options.point, options.data, rate_of(options), progress)
    finally:
        progress.end()
    output = output_of(options)
    if output.is_json:
        output.document(
            {
                "restorePoint": result.point,
                "createdMillis": result.created_ms,
                "sizeBytes": result.size_bytes,
                "ledgers": result.ledgers,
            }
        )
    else:
        output.line(
            f"Restored {result.point} into {options.data}: {size(result.size_bytes)} in {result.ledgers:,} ledgers, as of"
            f" {moment(result.created_ms)}. Start the broker with `pybroker serve --data {options.data}`."
        )
        output.line(
            "Messages and acknowledgements after that time are not part of it. Use a new directory for its backups."
        )
    return EXIT_OK
