"""`pybroker ack`, `redeliver`, `delay` and `disconnect`: Actions on single messages or clients.

The action is tried for each given message or client. The exit code is 0 only if all actions succeeded.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from urllib.parse import quote

from pybroker.cli.admin_rest import AdminRest, path_of, subscription_path
from pybroker.cli.commands.explain import partitions_of_id
from pybroker.cli.confirming import add_yes_option, require_confirmed
from pybroker.cli.exit_codes import EXIT_FAILED, EXIT_OK, CommandFailed, WrongUsage, say
from pybroker.cli.output import Output, add_json_option, output_of
from pybroker.cli.parsed_arguments import GivenId, message_id, number, seconds, time_ms, topic
from pybroker.cli.parsing import described
from pybroker.cli.which_broker import add_broker_options, broker_of
from pybroker.model.names import TopicName

TEXTS = {
    "ack": (
        "Acknowledge single messages for a subscription, as its consumer would. The subscription never receives them again.",
        """
pybroker ack orders billing 12:345
pybroker ack orders billing 12:345:2 12:346     the third message of a batch, and a whole entry
pybroker unacked orders billing --key customer-7 --json | jq -r '.messages[].messageId' | xargs pybroker ack orders billing --yes
""",
    ),
    "redeliver": (
        "Deliver single unacknowledged messages again now.",
        """
pybroker redeliver orders billing 12:345
""",
    ),
    "delay": (
        "Change when a delayed message is delivered, or deliver it now.",
        """
pybroker delay orders billing 12:345 --now
pybroker delay orders billing 12:345 --in 10m
pybroker delay orders billing 12:345 --until 2026-12-24T18:00:00Z
""",
    ),
    "disconnect": (
        "Disconnect a consumer or a producer. Its client reconnects; unacknowledged messages are delivered again.",
        """
pybroker disconnect orders billing --consumer billing-2
pybroker disconnect orders --producer shop-1
""",
    ),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    name = parser.prog.split()[-1]
    described(parser, *TEXTS[name])
    parser.add_argument("topic", type=topic, metavar="TOPIC")
    if name == "disconnect":
        parser.add_argument("subscription", nargs="?", metavar="SUBSCRIPTION")
        whom = parser.add_mutually_exclusive_group(required=True)
        whom.add_argument("--consumer", metavar="NAME", help="a consumer of the subscription, by its name")
        whom.add_argument("--producer", metavar="NAME", help="a producer of the topic, by its name")
        parser.add_argument(
            "--consumer-id", type=number, metavar="N", help="id of the consumer, if several consumers have this name"
        )
        parser.set_defaults(run=run_disconnect)
    else:
        parser.add_argument("subscription", metavar="SUBSCRIPTION")
        parser.add_argument("ids", type=message_id, nargs=1 if name == "delay" else "+", metavar="LEDGER:ENTRY[:INDEX]")
        parser.set_defaults(run={"ack": run_ack, "redeliver": run_redeliver, "delay": run_delay}[name])
    if name == "delay":
        when = parser.add_mutually_exclusive_group(required=True)
        when.add_argument("--until", type=time_ms, metavar="TIME", help="a time such as 2026-12-24T18:00:00Z")
        when.add_argument(
            "--in", dest="after", type=seconds, metavar="T", help="deliver the message after this time: 30s, 10m, 2h"
        )
        when.add_argument("--now", action="store_true", help="deliver the message now")
    if name == "ack":
        add_yes_option(parser)
    add_json_option(parser, "write one JSON document with the result of each action")
    add_broker_options(parser)


def run_ack(options: argparse.Namespace) -> int:
    which = f"message {options.ids[0]}" if len(options.ids) == 1 else f"{len(options.ids):,} messages"
    effect = f"subscription {options.subscription} of {options.topic} never receives {which} again"
    require_confirmed(options, f"This is irreversible: {effect}.")

    def path(given: GivenId) -> str:
        return _message(given, "acknowledge") + (f"?batchIndex={given.batch_index}" if given.batch_index >= 0 else "")

    return _for_each_id(options, "POST", path, "acknowledged")


def run_redeliver(options: argparse.Namespace) -> int:
    _require_entries(options.ids)
    return _for_each_id(options, "POST", lambda given: _message(given, "redeliver"), "will be delivered again")


def run_delay(options: argparse.Namespace) -> int:
    _require_entries(options.ids)
    if options.now:
        return _for_each_id(options, "DELETE", lambda given: _message(given, "delay"), "will be delivered now")
    at_ms = options.until if options.after is None else round((time.time() + options.after) * 1000)
    return _for_each_id(options, "PUT", lambda given: _message(given, "delay"), "delayed", {"deliverAt": at_ms})


def _message(given: GivenId, verb: str) -> str:
    return f"message/{given.ledger_id}/{given.entry_id}/{verb}"


def _require_entries(ids: Sequence[GivenId]) -> None:
    if any(given.batch_index >= 0 for given in ids):
        raise WrongUsage("the command works only on whole batches: give LEDGER:ENTRY without the batch index")


def _for_each_id(
    options: argparse.Namespace, method: str, path: Callable[[GivenId], str], done: str, body: object = None
) -> int:
    """Send one request per message id. Return EXIT_FAILED if the broker refused any."""
    output = output_of(options)
    outcomes: list[tuple[str, str | None]] = []
    with AdminRest(broker_of(options)) as rest:
        partitions: dict[int, TopicName] = {}
        for given in options.ids:
            if given.partition not in partitions:
                (partitions[given.partition],) = partitions_of_id(rest, options.topic, given)
            base = subscription_path(partitions[given.partition], options.subscription)
            try:
                rest.change(method, f"{base}/{path(given)}", body)
            except CommandFailed as error:
                outcomes.append((str(given), str(error)))
            else:
                outcomes.append((str(given), None))
    return _report(output, outcomes, done)


def _report(output: Output, outcomes: Sequence[tuple[str, str | None]], done: str) -> int:
    if output.is_json:
        output.document([{"messageId": name, "done": failure is None, "reason": failure} for name, failure in outcomes])
    for name, failure in outcomes:
        if failure is not None:
            say(f"{name}: {failure}")
        elif not output.is_json:
            output.line(f"{name} {done}")
    return EXIT_FAILED if any(failure is not None for _, failure in outcomes) else EXIT_OK


def run_disconnect(options: argparse.Namespace) -> int:
    if options.consumer is not None and options.subscription is None:
        raise WrongUsage(
            "--consumer needs the subscription of the consumer: pybroker disconnect TOPIC SUBSCRIPTION --consumer NAME"
        )
    if options.producer is not None and (options.subscription is not None or options.consumer_id is not None):
        raise WrongUsage(
            "--producer cannot be used with a subscription or a consumer id: pybroker disconnect TOPIC --producer NAME"
        )
    output = output_of(options)
    kind = "consumer" if options.producer is None else "producer"
    name = options.consumer if options.producer is None else options.producer
    with AdminRest(broker_of(options)) as rest:
        names = rest.partitions(options.topic)
        outcomes = [(str(each), _disconnected(rest, each, options, f"{kind}/{quote(name, safe='')}")) for each in names]
    # The client may be connected to some partitions only.
    reached = [(each, failure) for each, failure in outcomes if failure is None]
    if output.is_json:
        output.document([{"topic": each, "done": failure is None, "reason": failure} for each, failure in outcomes])
    elif reached:
        output.line(f"{kind} {name} is disconnected from {', '.join(each for each, _ in reached)}")
    if not reached:
        say(str(outcomes[0][1]))
    return EXIT_OK if reached else EXIT_FAILED


def _disconnected(rest: AdminRest, name: TopicName, options: argparse.Namespace, whom: str) -> str | None:
    base = path_of(name) if options.subscription is None else subscription_path(name, options.subscription)
    try:
        rest.change("POST", f"{base}/{whom}/disconnect", query={"consumerId": options.consumer_id})
    except CommandFailed as error:
        return str(error)
    return None
