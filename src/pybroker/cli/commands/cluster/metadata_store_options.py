"""Options of the commands of `pybroker metadata` that name a metadata store."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pybroker.cli.broker_settings import add_set_option, overrides_of

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig

_KEY_OF_OPTION = {
    "cluster": "clusterName",
    "metadata_store": "metadataStoreUrl",
    "configuration_metadata_store": "configurationMetadataStoreUrl",
    "data": "dataDirectory",
}


def add_store_options(parser: argparse.ArgumentParser, *, may_be_embedded: bool) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration file of a broker (default: none)")
    add_set_option(parser)
    parser.add_argument("--cluster", metavar="NAME", help="name of the cluster (clusterName)")
    parser.add_argument("--metadata-store", metavar="URL", help="such as zk:host:2181/path (metadataStoreUrl)")
    parser.add_argument(
        "--configuration-metadata-store",
        metavar="URL",
        help="the store that several clusters share (configurationMetadataStoreUrl)",
    )
    if may_be_embedded:
        parser.add_argument(
            "--data", metavar="DIR", help="without --metadata-store: data directory of a stopped broker (dataDirectory)"
        )


def configuration(options: argparse.Namespace) -> BrokerConfig:
    """Raises ConfigError."""
    from pybroker.config import Problems, read  # noqa: PLC0415  (so that --help answers at once)

    problems = Problems()
    loaded = read(options.config, os.environ, overrides_of(options, _KEY_OF_OPTION, problems))
    problems.found += loaded.problems
    problems.raise_any()
    return loaded.config
