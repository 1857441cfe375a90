"""`pybroker explain`: why a topic, subscription, key, message, consumer or producer stands still, and the call that helps."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from pybroker.cli.admin_rest import AdminRest, path_of, subscription_path
from pybroker.cli.exit_codes import EXIT_OK, EXIT_WAITS, WrongUsage
from pybroker.cli.output import BOLD, DIM, GREEN, RED, YELLOW, Output, add_json_option, output_of
from pybroker.cli.parsed_arguments import GivenId, base64_bytes, count, message_id, topic
from pybroker.cli.parsing import described
from pybroker.cli.text_tables import Cell, age, facts, moment, printable
from pybroker.cli.which_broker import SameBroker, add_broker_options, broker_of, same_broker
from pybroker.model.names import TopicName

EXAMPLES = """
pybroker explain                                 what is stuck on this broker, worst first
pybroker explain orders                          the topic, and shortly all its subscriptions
pybroker explain orders billing                  one subscription
pybroker explain orders billing --key customer-7
pybroker explain orders billing --id 12:345
pybroker explain orders billing --consumer billing-2
pybroker explain orders --producer shop-1
pybroker explain orders billing || echo "something waits, or it failed"     exit code 3 when something waits
"""
Document = dict[str, Any]
DEFAULT_LIMIT = 100
MAX_PAGE = 500
"""Maximum topics in one page of the list of stuck topics."""


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    parser.add_argument(
        "topic", nargs="?", type=topic, metavar="TOPIC", help="else all topics that the broker has loaded"
    )
    parser.add_argument("subscription", nargs="?", metavar="SUBSCRIPTION")
    parser.add_argument(
        "--limit",
        type=count,
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"without TOPIC: so many topics ({DEFAULT_LIMIT})",
    )
    what = parser.add_argument_group("what is asked about, instead of the whole").add_mutually_exclusive_group()
    what.add_argument("--key", metavar="K", help="the messages of a key")
    what.add_argument("--key-base64", type=base64_bytes, metavar="B", help="the same, for a key of bytes")
    what.add_argument("--id", type=message_id, metavar="L:E", help="a message: LEDGER:ENTRY or LEDGER:ENTRY:INDEX")
    what.add_argument("--consumer", metavar="C", help="a consumer, by its name")
    what.add_argument("--producer", metavar="P", help="a producer of the topic, by its name")
    add_json_option(parser, "the broker's document, a list of them for a partitioned topic")
    add_broker_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    query = _query(options)
    output = output_of(options)
    if options.topic is None:
        return _run_all(output, options)
    with AdminRest(broker_of(options)) as rest:
        names = partitions_of_id(rest, options.topic, options.id)
        documents = [rest.get(_path(name, options.subscription), query) for name in names]
    if output.is_json:
        output.document(documents[0] if len(documents) == 1 else documents)
    else:
        for index, document in enumerate(documents):
            if index:
                output.line()
            write_findings(output, document, int(time.time() * 1000), same_broker(options))
    return EXIT_WAITS if any(document.get("waiting") for document in documents) else EXIT_OK


def _run_all(output: Output, options: argparse.Namespace) -> int:
    """Explain all stuck topics."""
    with AdminRest(broker_of(options)) as rest:
        document = stuck_topics(rest, options.limit)
    if output.is_json:
        output.document(document)
    else:
        write_stuck(output, document, int(time.time() * 1000), same_broker(options))
    return EXIT_WAITS if document["matching"] else EXIT_OK


def stuck_topics(rest: AdminRest, limit: int, search: str | None = None) -> Document:
    """Fetch all pages of the broker's stuck topics as one document. Raises NotThere if the broker does not have the
    call."""
    found: list[Document] = []
    while True:
        page = {"search": search, "offset": len(found), "limit": min(MAX_PAGE, limit - len(found))}
        answer: Document = rest.get("/admin/v3/explain", page)
        found += answer["topics"]
        if not answer["topics"] or len(found) >= min(limit, answer["matching"]):
            return {**answer, "topics": found}


def write_stuck(output: Output, document: Document, now_ms: int, where: SameBroker) -> None:
    """Write one line for each topic, worst first."""
    rows: list[list[Cell]] = []
    for each in document["topics"]:
        finding = each["finding"]
        since_ms = finding.get("since")
        more = f" ({each['standing']} subscriptions are stuck)" if each["standing"] > 1 else ""
        waits = age(now_ms - since_ms) if since_ms else None
        rows.append([each["topic"], each["subscription"], finding["code"], waits, finding["sentence"] + more])
    output.table(["TOPIC", "SUBSCRIPTION", "FINDING", "FOR", "IN WORDS"], rows, "Nothing is stuck on this broker.")
    if document["matching"] > len(rows):
        output.line(f"{len(rows):,} of {document['matching']:,}: --limit shows more")
    if rows:
        output.line(f"What helps: {printable(where.command('pybroker explain TOPIC [SUBSCRIPTION]'))}", DIM)


def _query(options: argparse.Namespace) -> dict[str, object]:
    """Raises WrongUsage for options that need a subscription, or exclude one."""
    if options.topic is None and any(
        each is not None for each in (options.key, options.key_base64, options.id, options.consumer, options.producer)
    ):
        raise WrongUsage("--key, --id, --consumer and --producer are asked of a topic: pybroker explain TOPIC ...")
    of_subscription = {
        "key": options.key,
        "keyBase64": None if options.key_base64 is None else _base64_text(options.key_base64),
        "messageId": options.id,
        "consumer": options.consumer,
    }
    query = {name: value for name, value in of_subscription.items() if value is not None}
    if query and options.subscription is None:
        raise WrongUsage(
            "--key, --id and --consumer are asked of a subscription: pybroker explain TOPIC SUBSCRIPTION ..."
        )
    if options.producer is not None:
        if options.subscription is not None:
            raise WrongUsage("a producer is asked of its topic: leave the subscription out")
        return {"producer": options.producer}
    return query


def _base64_text(data: bytes) -> str:
    import base64  # noqa: PLC0415  (for the few who have keys of bytes)

    return base64.b64encode(data).decode()


def _path(name: TopicName, subscription: str | None) -> str:
    return f"{path_of(name) if subscription is None else subscription_path(name, subscription)}/explain"


def partitions_of_id(rest: AdminRest, name: TopicName, given: GivenId | None) -> list[TopicName]:
    """All partitions of the topic, or the one that the id names. Raises WrongUsage for an id that could be of any of them."""
    if given is not None and given.partition >= 0 and name.partition_index < 0:
        return [name.partition(given.partition)]
    names = rest.partitions(name)
    if given is not None and len(names) > 1:
        raise WrongUsage(
            f"{name} has {len(names)} partitions, each with ids of its own: name {name}-partition-N, "
            "or give the id as LEDGER:ENTRY:PARTITION:INDEX"
        )
    return names


def write_findings(output: Output, document: Document, now_ms: int, where: SameBroker) -> None:
    """Write an answer as text. `where` completes the suggested commands."""
    place = [document.get("topic", ""), document.get("subscription")]
    title = " / ".join(str(part) for part in place if part)
    subject = _subject(document.get("subject", {}))
    findings: list[Document] = document.get("findings", [])
    if document.get("waiting"):
        verdict, colour = "something waits", YELLOW
    else:
        verdict, colour = ("nothing waits", GREEN) if not findings else ("nothing waits, but", GREEN)
    output.line(printable(f"{title}{': ' + subject if subject else ''}"), BOLD)
    output.line(verdict, colour)
    for index, finding in enumerate(findings, 1):
        _write_finding(output, index, finding, now_ms, where)
    if "subscriptions" in document:
        output.line()
        _write_subscriptions(output, document)


def _write_subscriptions(output: Output, document: Document) -> None:
    """Write each subscription of a topic with its first problem."""
    rows: list[list[Cell]] = []
    for each in document["subscriptions"]:
        findings = each.get("findings") or [{}]
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        rows.append(
            [each["subscription"], each["waiting"], findings[0].get("code"), findings[0].get("sentence", "") + more]
        )
    output.table(["SUBSCRIPTION", "WAITS", "FINDING", "IN WORDS"], rows, "It has no subscriptions.")
    if document.get("moreSubscriptions"):
        output.line(f"and {document['moreSubscriptions']:,} subscriptions more: name one of them")


def _subject(subject: Document) -> str:
    """Return the subject besides topic and subscription."""
    kind = subject.get("kind", "")
    if kind in {"", "topic", "subscription"}:
        return ""
    others = ", ".join(
        f"{name} {_shown(value)}" for name, value in subject.items() if name not in {"kind", kind} and value is not None
    )
    first = _shown(subject[kind]) if kind in subject else ""
    return " ".join(part for part in (kind, first, f"({others})" if others else "") if part)


def _write_finding(output: Output, index: int, finding: Document, now_ms: int, where: SameBroker) -> None:
    mark = f"{index}." if finding.get("waits") else "-"
    since_ms = finding.get("since")
    since = f"  (since {moment(since_ms)}, {age(now_ms - since_ms)})" if since_ms else ""
    output.line()
    output.line(f"{mark} {output.styled(printable(str(finding.get('code', ''))), BOLD)}{since}")
    output.line(f"   {printable(str(finding.get('sentence', '')))}")
    evidence = finding.get("evidence") or {}
    output.lines(facts([(name, _shown(value)) for name, value in evidence.items()], "     "))
    for action in finding.get("actions") or ():
        colour = (RED,) if action.get("severity") == "irreversible" else ()
        output.line(f"   → {output.styled(printable(str(action.get('text', ''))), *colour)}")
        if action.get("command"):
            output.line(f"     $ {printable(where.command(str(action['command'])))}")


def _shown(value: object) -> str:
    """Return the text of an evidence value; names determine times, and lists are shortened to their first items."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        most = ", ".join(_shown(each) for each in value[:10])
        return most if len(value) <= 10 else f"{most}, and {len(value) - 10} more"
    if isinstance(value, dict):
        return ", ".join(f"{name}={_shown(each)}" for name, each in value.items())
    return json.dumps(value)
