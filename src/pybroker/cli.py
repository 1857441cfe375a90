"""The command line: parse arguments, load the configuration, hand over to `app`.

Owns the words of the command line and the exit codes: 0 for a clean end, 2 for arguments or a configuration that
cannot be used (one line on stderr for each thing that is wrong, no trace); `app` gives the code of a run. Imports little,
so that a broker starts quickly.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pybroker import __version__

if TYPE_CHECKING:
    from pybroker.config import Problems

EXIT_USAGE = 2

# Options of `serve` that stand for one key; they win over --set.
_KEY_OF_OPTION = {
    "data": "dataDirectory",
    "host": "bindAddress",
    "port": "brokerServicePort",
    "http_port": "webServicePort",
    "log_level": "logLevel",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # What follows a pipeline's name is its own: its options are known only once its libraries are there.
    own = 2 if given[:1] == ["pipeline"] else len(given)
    options = _parser().parse_args(given[:own])
    options.rest = given[own:]
    # Imported here so that --help and --version answer at once.
    from pybroker.config import ConfigError  # noqa: PLC0415

    try:
        code: int = options.run(options)
        return code
    except ConfigError as error:
        for problem in error.problems:
            print(f"pybroker: {problem}", file=sys.stderr)
        return EXIT_USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pybroker", description="A message broker that speaks the Apache Pulsar protocol."
    )
    parser.add_argument("--version", action="version", version=f"pybroker {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="run a broker until SIGTERM or Ctrl-C")
    serve.add_argument("--config", type=Path, metavar="FILE", help="configuration file, such as conf/broker.conf")
    serve.add_argument("--data", metavar="DIR", help="directory of everything that is stored (dataDirectory)")
    serve.add_argument("--host", metavar="H", help="address to listen on (bindAddress)")
    serve.add_argument("--port", metavar="N", help="port of the binary protocol, 0 for a free one (brokerServicePort)")
    serve.add_argument("--http-port", metavar="N", help="port of HTTP, 0 for a free one (webServicePort)")
    serve.add_argument("--log-level", metavar="L", help="debug, info, warning or error (logLevel)")
    serve.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any configuration key; may be repeated"
    )
    serve.add_argument(
        "--ready-file", type=Path, metavar="FILE", help="write ports and process id there, as JSON, when ready"
    )
    serve.set_defaults(run=_serve)
    _add_ledger_commands(commands.add_parser("ledger", help="look at stored data while no broker runs on it"))
    _add_pipelines(commands.add_parser("pipeline", help="run over topics as a whole, such as into open tables"))
    return parser


def _add_pipelines(parser: argparse.ArgumentParser) -> None:
    from pybroker.pipelines.registry import add_pipelines  # noqa: PLC0415  (see main)

    add_pipelines(parser)
    parser.set_defaults(run=_pipeline)


def _pipeline(options: argparse.Namespace) -> int:
    from pybroker.pipelines.registry import ExtraMissing, run  # noqa: PLC0415  (see main)

    try:
        return run(options.pipeline, options.rest)
    except ExtraMissing as error:
        print(f"pybroker: {error}", file=sys.stderr)
        return EXIT_USAGE


def _add_ledger_commands(parser: argparse.ArgumentParser) -> None:
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
    repair.set_defaults(run=_repair)


def _verify(options: argparse.Namespace) -> int:
    from pybroker.tools.verify import main as verify  # noqa: PLC0415  (see main)

    return verify(options.directory)


def _dump(options: argparse.Namespace) -> int:
    from pybroker.tools.dump import main as dump  # noqa: PLC0415  (see main)

    return dump(options.directory, options.ledger, with_payloads=options.payloads, is_json=options.json)


def _repair(options: argparse.Namespace) -> int:
    from pybroker.tools.repair import main as repair  # noqa: PLC0415  (see main)

    return repair(options.directory, applies=options.apply)


def _serve(options: argparse.Namespace) -> int:
    """Load the configuration and run the broker."""
    from pybroker.config import Problems, read  # noqa: PLC0415  (see main)
    from pybroker.configuration_check import check  # noqa: PLC0415

    problems = Problems()
    loaded = read(options.config, os.environ, _overrides(options, problems))
    problems.found += loaded.problems
    check(loaded.config, loaded.refused_keys, problems)
    if problems.found and loaded.unknown_keys:
        problems.found.append(_unknown(loaded.unknown_keys))
    problems.raise_any()
    warnings = []
    if loaded.unknown_keys:
        warnings.append(_unknown(loaded.unknown_keys))
    if loaded.unsupported_keys_in_use:
        warnings.append("configuration keys without effect so far: " + ", ".join(loaded.unsupported_keys_in_use))
    from pybroker.app import run  # noqa: PLC0415  (the whole broker; a bad configuration is told without it)

    return run(loaded.config, options.ready_file, warnings)


def _unknown(keys: Sequence[str]) -> str:
    from pybroker.config import similar_key  # noqa: PLC0415  (see main)

    meant = [similar_key(key) for key in keys]
    shown = [f"{key} (did you mean {like}?)" if like else key for key, like in zip(keys, meant, strict=True)]
    return "unknown configuration keys: " + ", ".join(shown)


def _overrides(options: argparse.Namespace, problems: "Problems") -> dict[str, str]:
    """What options say; what cannot be read is added to `problems`."""
    overrides: dict[str, str] = {}
    for setting in options.set:
        key, separator, value = setting.partition("=")
        if separator and key.strip():
            overrides[key.strip()] = value
        else:
            problems.found.append(f"--set needs key=value, not {setting!r}")
    for option, key in _KEY_OF_OPTION.items():
        value = getattr(options, option)
        if value is not None:
            overrides[key] = value
    return overrides
