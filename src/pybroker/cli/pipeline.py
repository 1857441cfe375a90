"""`pybroker pipeline`: runs over topics as a whole. What follows a pipeline's name is read by the pipeline itself."""

from __future__ import annotations

import argparse

from pybroker.cli.endings import EXIT_USAGE, say
from pybroker.cli.parsing import described
from pybroker.pipelines.registry import ExtraMissing, add_pipelines
from pybroker.pipelines.registry import run as run_pipeline

EXAMPLES = """
pybroker pipeline lake --help                    the options of one; each has its own
pybroker pipeline lake --topic orders --target /data/lake --table shop.orders --once
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, "Run over topics as a whole, such as into open tables.", EXAMPLES)
    add_pipelines(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        return run_pipeline(options.pipeline, options.rest)
    except ExtraMissing as error:
        say(str(error))
        return EXIT_USAGE
