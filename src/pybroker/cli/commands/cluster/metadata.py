"""`pybroker metadata`: Prepare the metadata store that the brokers of a cluster share, and move documents to it."""

from __future__ import annotations

import argparse

from pybroker.cli.broker_settings import run_with_configuration
from pybroker.cli.commands.cluster.metadata_transfer import (
    add_store_options,
    add_transfer_commands,
    store_configuration,
)
from pybroker.cli.exit_codes import EXIT_FAILED, EXIT_OK, say
from pybroker.cli.output import output_of
from pybroker.cli.parsing import described

EXAMPLES = """
pybroker metadata init --cluster c1 --metadata-store zk:zk1:2181,zk2:2181/pulsar
pybroker metadata export standalone.metadata --data /var/lib/pybroker
pybroker metadata import standalone.metadata --metadata-store zk:zk1:2181/pulsar --dry-run
pybroker metadata check --metadata-store zk:zk1:2181/pulsar
pybroker metadata init --config broker.conf --web-service-url http://broker:8080 --broker-service-url pulsar://broker:6650
"""
DEFAULT_COORDINATORS = 16


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    init = commands.add_parser(
        "init",
        help="write the documents that a new cluster needs; existing documents are kept, so the command can be repeated",
    )
    add_store_options(init)
    for name, meaning in (
        ("--web-service-url", "HTTP address of the cluster"),
        ("--web-service-url-tls", "HTTPS address of the cluster"),
        ("--broker-service-url", "pulsar:// address of the cluster"),
        ("--broker-service-url-tls", "pulsar+ssl:// address of the cluster"),
    ):
        init.add_argument(name, metavar="URL", help=f"{meaning}, for other clusters (default: as stored)")
    init.add_argument(
        "--initial-num-transaction-coordinators",
        type=int,
        default=DEFAULT_COORDINATORS,
        metavar="N",
        help=f"number of transaction coordinators of a new cluster (default: {DEFAULT_COORDINATORS})",
    )
    init.set_defaults(run=_init)
    add_transfer_commands(commands)


def _init(options: argparse.Namespace) -> int:
    return run_with_configuration(_run, options)


def _run(options: argparse.Namespace) -> int:
    import asyncio  # noqa: PLC0415
    import random  # noqa: PLC0415

    from pybroker.config import ConfigError  # noqa: PLC0415
    from pybroker.errors import AdminError, StoreError  # noqa: PLC0415
    from pybroker.metadata.cluster_initialization import ClusterAddresses, initialize_cluster  # noqa: PLC0415
    from pybroker.metadata.shared_metadata import client_options, shared_addresses  # noqa: PLC0415
    from pybroker.model.names import is_valid_entity  # noqa: PLC0415

    config, output = store_configuration(options), output_of(options)
    # Where ledgers are stored does not matter here.
    addresses = shared_addresses(config.replace(ledger_store="local"))
    if addresses is None:
        raise ConfigError("no metadata store is given: add --metadata-store zk:host:2181/path, or set metadataStoreUrl")
    if not is_valid_entity(config.cluster_name):
        raise ConfigError(
            f"clusterName cannot be {config.cluster_name!r}: a cluster name consists of letters, digits and the "
            "characters -=:._"
        )
    if options.initial_num_transaction_coordinators < 1:
        raise ConfigError("--initial-num-transaction-coordinators must be 1 or more")
    cluster = ClusterAddresses(
        options.web_service_url,
        options.web_service_url_tls,
        options.broker_service_url,
        options.broker_service_url_tls,
    )
    try:
        asyncio.run(
            initialize_cluster(
                addresses,
                client_options(config),
                config.metadata_store_start_timeout_seconds,
                config.cluster_name,
                cluster,
                options.initial_num_transaction_coordinators,
                output.line,
                random.SystemRandom(),
            )
        )
    except (AdminError, StoreError) as error:
        say(str(error))
        return EXIT_FAILED
    output.line(f"The metadata store is ready for brokers of cluster {config.cluster_name}.")
    return EXIT_OK
