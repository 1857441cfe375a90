"""`pybroker explain`: Show why messages of a topic, subscription, key, consumer or producer wait, and the commands that help."""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pybroker.cli.admin_rest import AdminRest, path_of, subscription_path
from pybroker.cli.exit_codes import EXIT_OK, EXIT_WAITS, WrongUsage
from pybroker.cli.explain_text import ExplainText, Line
from pybroker.cli.output import Output, add_json_option, output_of
from pybroker.cli.parsed_arguments import GivenId, base64_bytes, count, message_id, topic
from pybroker.cli.parsing import described
from pybroker.cli.watching import add_watch_option, show
from pybroker.cli.which_broker import SameBroker, add_broker_options, broker_of, same_broker
from pybroker.model.names import TopicName

EXAMPLES = """
pybroker explain                                 all stuck topics of the broker or cluster, worst first
pybroker explain orders                          the topic, and all its subscriptions in short
pybroker explain orders billing                  one subscription
pybroker explain orders billing --key customer-7
pybroker explain orders billing --id 12:345
pybroker explain orders billing --consumer billing-2
pybroker explain orders --producer shop-1
pybroker explain orders billing --watch          refresh every 2 seconds, until Ctrl-C
pybroker explain orders billing --watch=500ms
pybroker explain orders billing --json           the complete document, for programs
pybroker explain orders billing || echo "stuck"  exit code 3: something is stuck; 0: nothing is; 1: the command failed
"""
Document = dict[str, Any]
DEFAULT_LIMIT = 100
DEFAULT_WIDTH = 80
MAX_PAGE = 500
"""Topics per page of the list of stuck topics."""


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    parser.add_argument(
        "topic",
        nargs="?",
        type=topic,
        metavar="TOPIC",
        help="without a topic: all stuck topics of the broker or cluster",
    )
    parser.add_argument(
        "subscription", nargs="?", metavar="SUBSCRIPTION", help="without one: the topic and all its subscriptions"
    )
    parser.add_argument(
        "--limit",
        type=count,
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"without TOPIC: show at most N topics ({DEFAULT_LIMIT})",
    )
    what = parser.add_argument_group(
        "explain one of these instead of the whole topic or subscription"
    ).add_mutually_exclusive_group()
    what.add_argument("--key", metavar="K", help="why messages of this key wait")
    what.add_argument(
        "--key-base64", type=base64_bytes, metavar="B", help="why messages of this binary key wait (Base64)"
    )
    what.add_argument(
        "--id", type=message_id, metavar="L:E", help="why this message waits: LEDGER:ENTRY or LEDGER:ENTRY:INDEX"
    )
    what.add_argument("--consumer", metavar="C", help="why this consumer receives no messages")
    what.add_argument("--producer", metavar="P", help="why this producer cannot publish")
    add_watch_option(parser)
    add_json_option(
        parser, "the complete document; a list of documents for a partitioned topic; with --watch, one line each time"
    )
    add_broker_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    query = _query(options)
    output, where = output_of(options), same_broker(options)
    with AdminRest(broker_of(options)) as rest:
        if options.topic is None:
            fetch = partial(_stuck, rest, options.limit)
        else:
            names = partitions_of_id(rest, options.topic, options.id)
            fetch = partial(_explained, rest, [_path(name, options.subscription) for name in names], query)
        return show(output, options.watch, partial(_draw, fetch, where))


def _draw(fetch: Callable[[], Explained], where: SameBroker, output: Output) -> int:
    explained = fetch()
    if output.is_json:
        output.document(explained.json)
    else:
        _write(output, explained.lines(text_for(output, where)))
    return EXIT_WAITS if explained.is_stuck else EXIT_OK


class Explained(NamedTuple):
    """The JSON responses of the broker: one for a topic, several for a partitioned topic, or the list of stuck topics."""

    documents: Sequence[Document]
    is_list_of_topics: bool = False

    @property
    def json(self) -> object:
        return self.documents[0] if len(self.documents) == 1 else self.documents

    @property
    def is_stuck(self) -> bool:
        if self.is_list_of_topics:
            return any(
                each["matching"] or any(found["waits"] for found in each.get("broker", ())) for each in self.documents
            )
        return any(each.get("waiting") for each in self.documents)

    def lines(self, text: ExplainText) -> list[Line]:
        lines: list[Line] = []
        for each in self.documents:
            lines += [Line()] if lines else []
            lines += text.stuck(each) if self.is_list_of_topics else text.document(each)
        return lines


def _explained(rest: AdminRest, paths: Sequence[str], query: Mapping[str, Any]) -> Explained:
    return Explained([rest.get(path, query) for path in paths])


def _stuck(rest: AdminRest, limit: int) -> Explained:
    return Explained([stuck_topics(rest, limit)], is_list_of_topics=True)


def text_for(output: Output, where: SameBroker) -> ExplainText:
    """Return the formatter for the terminal's width, or for 80 columns without a terminal."""
    width = output.width or shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns
    return ExplainText(width, int(time.time() * 1000), where)


def _write(output: Output, lines: Sequence[Line]) -> None:
    for line in lines:
        output.line(line.text, *line.styles)


def stuck_topics(rest: AdminRest, limit: int, search: str | None = None) -> Document:
    """Return the stuck topics of the broker, or of its cluster, as one document with at most `limit` topics. `search`:
    words that the topic name must contain. Raises NotThere if the broker does not have this call.
    """
    found: list[Document] = []
    while True:
        page = {"search": search, "offset": len(found), "limit": min(MAX_PAGE, limit - len(found))}
        answer: Document = rest.get("/admin/v3/explain", page)
        found += answer["topics"]
        if not answer["topics"] or len(found) >= min(limit, answer["matching"]):
            return {**answer, "topics": found}


def _query(options: argparse.Namespace) -> dict[str, object]:
    if options.topic is None and any(
        each is not None for each in (options.key, options.key_base64, options.id, options.consumer, options.producer)
    ):
        raise WrongUsage("--key, --id, --consumer and --producer need a topic: pybroker explain TOPIC ...")
    of_subscription = {
        "key": options.key,
        "keyBase64": None if options.key_base64 is None else _base64_text(options.key_base64),
        "messageId": options.id,
        "consumer": options.consumer,
    }
    query = {name: value for name, value in of_subscription.items() if value is not None}
    if query and options.subscription is None:
        raise WrongUsage("--key, --id and --consumer need a subscription: pybroker explain TOPIC SUBSCRIPTION ...")
    if options.producer is not None:
        if options.subscription is not None:
            raise WrongUsage(
                "--producer selects a producer of the topic, so no subscription can be given: remove the subscription"
            )
        return {"producer": options.producer}
    return query


def _base64_text(data: bytes) -> str:
    import base64  # noqa: PLC0415  (for the few who have keys of bytes)

    return base64.b64encode(data).decode()


def _path(name: TopicName, subscription: str | None) -> str:
    return f"{path_of(name) if subscription is None else subscription_path(name, subscription)}/explain"


def partitions_of_id(rest: AdminRest, name: TopicName, given: GivenId | None) -> list[TopicName]:
    """Return the partitions in which a message id must be searched: all of them, or the partition in the id.

    Raises WrongUsage for an id that may be in several partitions.
    """
    if given is not None and given.partition >= 0 and name.partition_index < 0:
        return [name.partition(given.partition)]
    names = rest.partitions(name)
    if given is not None and len(names) > 1:
        raise WrongUsage(
            f"topic {name} has {len(names)} partitions, and each has its own message ids: use {name}-partition-N, "
            "or write the id as LEDGER:ENTRY:PARTITION:INDEX"
        )
    return names
