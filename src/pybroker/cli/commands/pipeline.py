"""`pybroker pipeline`: Run a pipeline over whole topics. The pipeline parses the arguments after its name."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from pybroker.cli.binary_client import binary_access
from pybroker.cli.exit_codes import EXIT_USAGE, WrongUsage, say
from pybroker.cli.parsing import CommandParser, described, epilog_of
from pybroker.cli.which_broker import add_broker_options, broker_of
from pybroker.client.access import Access
from pybroker.errors import InvalidTopicName
from pybroker.model.names import TopicName
from pybroker.pipelines.pipeline_registry import ExtraMissing, add_pipelines, module_of

EXAMPLES = """
pybroker pipeline lake --help                    the options of this pipeline
pybroker pipeline lake --topic orders --target /data/lake --table shop.orders --once
pybroker pipeline replay --topic orders --target orders-copy
pybroker --profile prod pipeline key-skew --topic orders
pybroker pipeline key-skew --topic orders --subscription billing --consumers 4
pybroker pipeline schema-audit --topic orders
pybroker pipeline dlq-triage --topic orders-billing-DLQ
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, "Run a pipeline over whole topics, for example into lake tables.", EXAMPLES)
    add_pipelines(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        pipeline = module_of(options.pipeline)
    except ExtraMissing as error:
        say(str(error))
        return EXIT_USAGE
    parser = CommandParser(prog=f"pybroker pipeline {options.pipeline}", description=pipeline.__doc__)
    parser.epilog = epilog_of(parser.prog, EXAMPLES.splitlines())
    add_broker_options(parser, is_binary=True)
    pipeline.add_options(parser)
    asked = parser.parse_args(options.rest)

    def connect(topics: Sequence[str], settings: Mapping[str, str] | None = None) -> Access:
        where = broker_of(asked, settings=settings or {})
        if not topics:
            return where.access
        try:
            return binary_access(where, TopicName.parse(topics[0]))
        except InvalidTopicName as error:
            raise WrongUsage(str(error)) from error

    code: int = pipeline.run(asked, parser, connect)
    return code
