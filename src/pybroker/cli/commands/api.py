"""`pybroker api`: Call any path of the REST API, with the same broker and credentials as the other commands."""

from __future__ import annotations

import argparse
import json
import sys

from pybroker.cli.admin_rest import AdminRest
from pybroker.cli.confirming import add_yes_option, require_confirmed
from pybroker.cli.exit_codes import EXIT_OK, WrongUsage
from pybroker.cli.output import output_of
from pybroker.cli.parsing import described
from pybroker.cli.text_tables import printable
from pybroker.cli.which_broker import add_broker_options, broker_of

EXAMPLES = """
pybroker api GET /admin/v2/clusters
pybroker api PUT /admin/v2/persistent/public/default/orders/compaction
pybroker api POST /admin/v2/persistent/public/default/orders/retention '{"retentionTimeInMinutes": 60, "retentionSizeInMB": 100}'
pybroker api PUT /admin/v2/namespaces/acme/orders - --yes < policies.json
"""
METHODS = ("GET", "POST", "PUT", "DELETE")


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    parser.add_argument("method", type=str.upper, choices=METHODS, metavar="METHOD", help="GET, POST, PUT or DELETE")
    parser.add_argument("path", metavar="PATH", help="such as /admin/v2/clusters, with its query parameters")
    parser.add_argument("body", nargs="?", metavar="BODY", help="JSON, or - to read it from standard input")
    add_yes_option(parser)
    add_broker_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if not options.path.startswith("/") or not options.path.isascii() or not options.path.isprintable():
        raise WrongUsage("PATH must begin with /, such as /admin/v2/clusters; percent-encode characters outside ASCII")
    text = sys.stdin.read() if options.body == "-" else options.body
    body = None if text is None else json_body(text)
    if options.method != "GET":
        require_confirmed(options, f"{options.method} {options.path} may change or delete something on the broker.")
    with AdminRest(broker_of(options)) as rest:
        answer = rest.call(options.method, options.path, body)
    if answer.body:
        _write(options, answer.body)
    return EXIT_OK


def json_body(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise WrongUsage(
            "the value is not JSON. Put a text in double quotation marks and the whole argument in single quotation marks: "
            "'\"text\"'"
        ) from None


def _write(options: argparse.Namespace, body: bytes) -> None:
    output = output_of(options)
    try:
        output.document(json.loads(body))
    except (ValueError, RecursionError):
        for line in body.decode(errors="backslashreplace").splitlines():
            output.line(printable(line))
