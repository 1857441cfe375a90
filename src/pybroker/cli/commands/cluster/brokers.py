"""`pybroker brokers`: List the brokers of a cluster, show the leader, check a broker, or stop one."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

from pybroker.cli.admin_rest import AdminRest
from pybroker.cli.confirming import add_yes_option, require_confirmed
from pybroker.cli.exit_codes import EXIT_OK
from pybroker.cli.output import add_json_option, output_of, write_done
from pybroker.cli.parsed_arguments import count
from pybroker.cli.parsing import described
from pybroker.cli.which_broker import add_broker_options, broker_of

EXAMPLES = """
pybroker brokers list
pybroker brokers leader-broker
pybroker brokers health --broker broker2.example:8080
pybroker brokers shutdown --yes
pybroker brokers shutdown --max-concurrent-unload-per-sec 5 --yes
"""
BASE = "/admin/v2/brokers"


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="list the registered brokers")
    leader = commands.add_parser("leader-broker", help="show the elected leader, which assigns bundles to brokers")
    health = commands.add_parser("health", help="publish and receive a message at a broker")
    health.add_argument("--broker", metavar="HOST:PORT", help="id of the broker (default: the broker at --url)")
    shutdown = commands.add_parser("shutdown", help="stop the broker at --url, as SIGTERM does")
    shutdown.add_argument(
        "--max-concurrent-unload-per-sec",
        type=count,
        metavar="N",
        help="bundles that are handed over to other brokers per second (default: no limit)",
    )
    for each, run in ((listing, _list), (leader, _leader), (health, _health), (shutdown, _shutdown)):
        if each is shutdown:
            add_yes_option(each)
        add_json_option(each)
        add_broker_options(each)
        each.set_defaults(run=run)


def _list(options: argparse.Namespace) -> int:
    output = output_of(options)
    with AdminRest(broker_of(options)) as rest:
        found: list[str] = rest.get(BASE)
    if output.is_json:
        output.document(found)
    else:
        for broker_id in found:
            output.line(broker_id)
    return EXIT_OK


def _leader(options: argparse.Namespace) -> int:
    output = output_of(options)
    with AdminRest(broker_of(options)) as rest:
        found: dict[str, Any] = rest.get(f"{BASE}/leaderBroker")
    if output.is_json:
        output.document(found)
    else:
        output.line(f"{found.get('brokerId')}  {found.get('serviceUrl')}")
    return EXIT_OK


def _health(options: argparse.Namespace) -> int:
    query = f"?brokerId={quote(options.broker, safe='')}" if options.broker else ""
    with AdminRest(broker_of(options)) as rest:
        answer = rest.call("GET", f"{BASE}/health{query}")
    return write_done(options, answer.body.decode(errors="replace"))


def _shutdown(options: argparse.Namespace) -> int:
    require_confirmed(options, "The broker stops, and its clients connect to other brokers of the cluster.")
    with AdminRest(broker_of(options)) as rest:
        rate = options.max_concurrent_unload_per_sec
        rest.change("POST", f"{BASE}/shutdown" if rate is None else f"{BASE}/shutdown?maxConcurrentUnloadPerSec={rate}")
    return write_done(options, "The broker stops.")
