"""The command line: parse arguments, load the configuration, hand over to `app`.

Owns the words of the command line and the exit codes: 0 for a clean end, 2 for arguments or a configuration that
cannot be used (one line on stderr, no trace); `app` gives the code of a run. Imports little, so that a broker starts
quickly.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pybroker import __version__

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
    options = _parser().parse_args(arguments)
    # Imported here so that --help and --version answer at once.
    from pybroker.config import ConfigError  # noqa: PLC0415

    try:
        return _serve(options)
    except ConfigError as error:
        print(f"pybroker: {error}", file=sys.stderr)
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
    return parser


def _serve(options: argparse.Namespace) -> int:
    """Load the configuration and run the broker."""
    from pybroker.config import load  # noqa: PLC0415  (see main)

    loaded = load(options.config, os.environ, _overrides(options))
    warnings = []
    if loaded.unknown_keys:
        warnings.append("unknown configuration keys: " + ", ".join(loaded.unknown_keys))
    if loaded.unsupported_keys_in_use:
        warnings.append("configuration keys without effect so far: " + ", ".join(loaded.unsupported_keys_in_use))
    from pybroker.app import run  # noqa: PLC0415  (the whole broker; a bad configuration is told without it)

    return run(loaded.config, options.ready_file, warnings)


def _overrides(options: argparse.Namespace) -> dict[str, str]:
    from pybroker.config import ConfigError  # noqa: PLC0415  (see main)

    overrides: dict[str, str] = {}
    for setting in options.set:
        key, separator, value = setting.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"--set needs key=value, not {setting!r}")
        overrides[key.strip()] = value
    for option, key in _KEY_OF_OPTION.items():
        value = getattr(options, option)
        if value is not None:
            overrides[key] = value
    return overrides
