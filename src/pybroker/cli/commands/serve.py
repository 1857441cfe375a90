"""`pybroker serve`: Load the configuration and run a broker.

All configuration errors are reported together, one per line, with exit code 2.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pybroker.cli.broker_settings import add_set_option, overrides_of, run_with_configuration
from pybroker.cli.parsing import described

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig

EXAMPLES = """
pybroker serve --config conf/broker.conf
pybroker serve --data /var/lib/pybroker --host 0.0.0.0
pybroker serve --set defaultRetentionTimeInMinutes=60 --set consoleEnabled=false
pybroker serve --data try --port 0 --http-port 0 --ready-file ready.json     any free ports, written to ready.json
"""
# These options take precedence over --set.
_KEY_OF_OPTION = {
    "data": "dataDirectory",
    "host": "bindAddress",
    "port": "brokerServicePort",
    "http_port": "webServicePort",
    "log_level": "logLevel",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, "Run a broker until SIGTERM or Ctrl-C.", EXAMPLES)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration file, such as conf/broker.conf (default: none)"
    )
    parser.add_argument("--data", metavar="DIR", help="directory of all stored data (dataDirectory)")
    parser.add_argument("--host", metavar="H", help="address to listen on (bindAddress)")
    parser.add_argument(
        "--port", metavar="N", help="port of the binary protocol, 0 for any free port (brokerServicePort)"
    )
    parser.add_argument("--http-port", metavar="N", help="port of HTTP, 0 for any free port (webServicePort)")
    parser.add_argument("--log-level", metavar="L", help="debug, info, warning or error (logLevel)")
    add_set_option(parser)
    parser.add_argument(
        "--ready-file",
        type=Path,
        metavar="FILE",
        help="when the broker is ready, write its ports and process id to this file as JSON",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    return run_with_configuration(_run, options)


def _run(options: argparse.Namespace) -> int:
    from pybroker.config import Problems, read  # noqa: PLC0415
    from pybroker.configuration_check import check  # noqa: PLC0415

    problems = Problems()
    loaded = read(options.config, os.environ, overrides_of(options, _KEY_OF_OPTION, problems))
    problems.found += loaded.problems
    check(loaded.config, loaded.refused_keys, problems)
    if problems.found and loaded.unknown_keys:
        problems.found.append(_unknown(loaded.unknown_keys))
    problems.raise_any()
    warnings = []
    if loaded.unknown_keys:
        warnings.append(_unknown(loaded.unknown_keys))
    if loaded.unsupported_keys_in_use:
        warnings.append(
            "configuration keys without effect in this version: " + ", ".join(loaded.unsupported_keys_in_use)
        )
    from pybroker.broker_process import run as run_broker  # noqa: PLC0415  (the whole broker; a bad configuration is told without it)

    def read_again() -> "BrokerConfig":
        problems = Problems()
        again = read(options.config, os.environ, overrides_of(options, _KEY_OF_OPTION, problems))
        problems.found += again.problems
        check(again.config, again.refused_keys, problems)
        problems.raise_any()
        return again.config

    return run_broker(loaded.config, options.ready_file, warnings, read_again=read_again)


def _unknown(keys: Sequence[str]) -> str:
    from pybroker.config import similar_key  # noqa: PLC0415

    meant = [similar_key(key) for key in keys]
    shown = [f"{key} (did you mean {like}?)" if like else key for key, like in zip(keys, meant, strict=True)]
    return "unknown configuration keys: " + ", ".join(shown)
