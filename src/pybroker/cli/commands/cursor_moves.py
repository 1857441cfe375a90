"""`pybroker skip`, `seek` and `delete`: Move a subscription's position, or delete a subscription or topic.

The commands ask for confirmation, because messages may be lost.
"""

from __future__ import annotations

import argparse

from pybroker.cli.admin_rest import AdminRest, path_of, subscription_path
from pybroker.cli.commands.explain import partitions_of_id
from pybroker.cli.confirming import add_yes_option, require_confirmed
from pybroker.cli.output import add_json_option, write_done
from pybroker.cli.parsed_arguments import MAX_NUMBER, count, start, topic
from pybroker.cli.parsing import described
from pybroker.cli.text_tables import moment
from pybroker.cli.which_broker import add_broker_options, broker_of

TEXTS = {
    "skip": (
        "Skip messages that a subscription has not acknowledged. The subscription never receives them.",
        """
pybroker skip orders billing --all
pybroker skip orders billing -n 10 --yes
""",
    ),
    "seek": (
        "Move a subscription to a message or a time. The subscription then receives this message and all later messages.",
        """
pybroker seek orders billing 12:345
pybroker seek orders billing 2026-11-23T04:00:00Z
pybroker seek orders billing earliest
""",
    ),
    "delete": (
        "Delete a subscription, or, without SUBSCRIPTION, the topic with all its messages.",
        """
pybroker delete orders billing
pybroker delete orders --force --yes
""",
    ),
}
_WORDS = {"earliest": {"ledgerId": -1, "entryId": -1}, "latest": {"ledgerId": MAX_NUMBER, "entryId": MAX_NUMBER}}


def add_options(parser: argparse.ArgumentParser) -> None:
    name = parser.prog.split()[-1]
    described(parser, *TEXTS[name])
    parser.add_argument("topic", type=topic, metavar="TOPIC")
    if name == "delete":
        parser.add_argument("subscription", nargs="?", metavar="SUBSCRIPTION", help="default: delete the topic")
        parser.add_argument("--force", action="store_true", help="even if clients are connected")
    else:
        parser.add_argument("subscription", metavar="SUBSCRIPTION")
    if name == "skip":
        many = parser.add_mutually_exclusive_group(required=True)
        many.add_argument("--all", action="store_true", help="all messages that are stored now")
        many.add_argument("-n", "--count", type=count, metavar="N", help="the oldest N entries of each partition")
    if name == "seek":
        parser.add_argument("to", type=start, metavar="ID|TIME|earliest|latest")
    parser.set_defaults(run={"skip": run_skip, "seek": run_seek, "delete": run_delete}[name])
    add_yes_option(parser)
    add_json_option(parser, "write one JSON document that describes the change")
    add_broker_options(parser)


def run_skip(options: argparse.Namespace) -> int:
    which = "all messages" if options.all else f"the oldest {options.count:,} messages"
    effect = (
        f"subscription {options.subscription} of {options.topic} never receives {which} that it has not acknowledged"
    )
    require_confirmed(options, f"This is irreversible: {effect}.")
    with AdminRest(broker_of(options)) as rest:
        for name in rest.partitions(options.topic):
            base = subscription_path(name, options.subscription)
            rest.change("POST", f"{base}/skip_all" if options.all else f"{base}/skip/{options.count}")
    return write_done(options, f"subscription {options.subscription} of {options.topic} has skipped {which}")


def run_seek(options: argparse.Namespace) -> int:
    to = options.to
    where = to.word or (str(to.id) if to.id is not None else moment(to.time_ms))
    name = f"subscription {options.subscription} of {options.topic}"
    require_confirmed(
        options,
        f"{name[0].upper()}{name[1:]} is moved to {where}: the subscription receives all messages from this position on, also "
        "acknowledged messages, and no earlier messages. Its consumers reconnect.",
    )
    with AdminRest(broker_of(options)) as rest:
        for each in partitions_of_id(rest, options.topic, to.id):
            base = f"{subscription_path(each, options.subscription)}/resetcursor"
            if to.time_ms is not None:
                rest.change("POST", f"{base}/{to.time_ms}")
            elif to.id is None:
                rest.change("POST", base, _WORDS[to.word])
            else:
                body = {"ledgerId": to.id.ledger_id, "entryId": to.id.entry_id}
                rest.change("POST", base, body if to.id.batch_index < 0 else {**body, "batchIndex": to.id.batch_index})
    return write_done(options, f"{name} is moved to {where}")


def run_delete(options: argparse.Namespace) -> int:
    what = (
        f"topic {options.topic}"
        if options.subscription is None
        else f"subscription {options.subscription} of {options.topic}"
    )
    loses = (
        "all its messages"
        if options.subscription is None
        else "its position and the messages that only this subscription retained"
    )
    require_confirmed(options, f"This is irreversible: {what} is deleted with {loses}.")
    query = {"force": True if options.force else None}
    with AdminRest(broker_of(options)) as rest:
        if options.subscription is not None:
            rest.change("DELETE", subscription_path(options.topic, options.subscription), query=query)
        else:
            parts = options.topic.partition_index < 0 and rest.get(f"{path_of(options.topic)}/partitions")["partitions"]
            rest.change("DELETE", path_of(options.topic) + ("/partitions" if parts else ""), query=query)
    return write_done(options, f"{what} is deleted")
