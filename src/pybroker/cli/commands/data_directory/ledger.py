"""`pybroker ledger`: look at a data directory while no broker runs on it, and mend it."""

from __future__ import annotations

import argparse
from pathlib import Path

from pybroker.cli.parsing import described

EXAMPLES = """
pybroker ledger verify data
pybroker ledger dump data --ledger 12 --json
pybroker ledger repair data                      what would be done, where a broker does not start
pybroker ledger repair data --apply
pybroker ledger repair data --apply --accept-loss    start without stored data that is missing, and lost for good
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    verify = commands.add_parser("verify", help="read everything and tell each damage; exit code 1 if there is any")
    verify.add_argument("directory", type=Path, metavar="DIR", help="the data directory")
    verify.set_defaults(run=_verify)
    dump = commands.add_parser("dump", help="show ledgers, entries, cursors and the journal")
    dump.add_argument("directory", type=Path, metavar="DIR", help="the data directory")
    dump.add_argument("--ledger", type=int, metavar="N", help="this ledger alone")
    dump.add_argument("--payloads", action="store_true", help="the bytes of entries too, as hexadecimal digits")
    dump.add_argument("--json", action="store_true", help="one JSON object a line")
    dump.set_defaults(run=_dump)
    repair = commands.add_parser(
        "repair", help="show how a directory that no broker starts on can be made whole, or do it"
    )
    repair.add_argument("directory", type=Path, metavar="DIR", help="the data directory")
    repair.add_argument("--apply", action="store_true", help="do it; what is replaced is kept in DIR/taken-away-<time>")
    repair.add_argument(
        "--accept-loss",
        action="store_true",
        help="with --apply: go on without stored data that is missing (journal or ledgers lost, cut or older)",
    )
    repair.set_defaults(run=_repair)


def _verify(options: argparse.Namespace) -> int:
    from pybroker.tools.verify import main as verify  # noqa: PLC0415  (so that --help answers at once)

    return verify(options.directory)


def _dump(options: argparse.Namespace) -> int:
    from pybroker.tools.dump import main as dump  # noqa: PLC0415

    return dump(options.directory, options.ledger, with_payloads=options.payloads, is_json=options.json)


def _repair(options: argparse.Namespace) -> int:
    from pybroker.tools.repair import main as repair  # noqa: PLC0415

    return repair(options.directory, applies=options.apply, accepts_loss=options.accept_loss)
