"""`pybroker peek`: Show the next messages of a subscription without receiving them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from datetime import datetime

from pybroker.cli.admin_rest import AdminRest, Answer, NotThere, path_of, subscription_path
from pybroker.cli.exit_codes import EXIT_OK, CommandFailed, say
from pybroker.cli.message_text import message_document, message_line
from pybroker.cli.output import add_json_option, output_of
from pybroker.cli.parsed_arguments import count, topic
from pybroker.cli.parsing import described
from pybroker.cli.which_broker import add_broker_options, broker_of
from pybroker.client.consuming.unpacking import unpack_batch
from pybroker.client.frames import ReceivedEntry
from pybroker.client.message import Message, MessageId
from pybroker.model.names import TopicName
from pybroker.wire import pulsar_api_pb2 as pb
from pybroker.wire.compression import DamagedPayload

EXAMPLES = """
pybroker peek orders billing
pybroker peek orders billing -n 10 --json | jq -r .value
"""
_HEADER = "x-pulsar-"


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    parser.add_argument("topic", type=topic, metavar="TOPIC")
    parser.add_argument("subscription", metavar="SUBSCRIPTION")
    parser.add_argument(
        "-n", "--count", type=count, default=1, metavar="N", help="number of entries of each partition (1)"
    )
    add_json_option(parser, "write one line of JSON for each message")
    add_broker_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    output = output_of(options)
    shown = 0
    with AdminRest(broker_of(options)) as rest:
        for name in rest.partitions(options.topic):
            _require_subscription(rest, name, options.subscription)
            for message in _next(rest, name, options.subscription, options.count):
                if output.is_json:
                    output.record(message_document(message))
                else:
                    output.line(message_line(message))
                shown += 1
    if not shown and not output.is_json:
        output.line("No unacknowledged messages.")
    return EXIT_OK


def _require_subscription(rest: AdminRest, name: TopicName, subscription: str) -> None:
    if subscription not in rest.get(f"{path_of(name)}/subscriptions"):
        raise NotThere(f"Subscription {subscription} not found for topic {name}", subscription_path(name, subscription))


def _next(rest: AdminRest, name: TopicName, subscription: str, most: int) -> Iterator[Message]:
    for position in range(1, most + 1):
        path = f"{subscription_path(name, subscription)}/position/{position}"
        try:
            answer = rest.call("GET", path)
        except NotThere as error:
            if "Message not found" in str(error):
                return
            raise
        try:
            yield from messages_of(answer, name)
        except DamagedPayload as error:
            say(f"{name}: entry {position}: {error}")


def messages_of(answer: Answer, name: TopicName) -> list[Message]:
    said = {key.removeprefix(_HEADER): value for key, value in answer.headers.items() if key.startswith(_HEADER)}
    try:
        ledger_id, entry_id = (int(part) for part in said["message-id"].split(":")[:2])
        metadata = _metadata(said)
    except (KeyError, ValueError) as error:
        raise CommandFailed(
            f"{name}: the response has no message id or publish time. Check that --url is the HTTP address of a broker."
        ) from error
    received = ReceivedEntry(0, ledger_id, entry_id, 0, b"")
    if said.get("is-encrypted") == "true":
        say(
            f"{ledger_id}:{entry_id} is encrypted: its value is shown encrypted, because this command has no decryption keys"
        )
    elif "num-batch-message" in said:
        metadata.num_messages_in_batch = int(said["num-batch-message"])
        return unpack_batch(received, metadata, answer.body, str(name), name.partition_index).messages
    return [
        Message(
            MessageId(ledger_id, entry_id, name.partition_index),
            str(name),
            None if said.get("null-value") == "true" else answer.body,
            said.get("partition-key"),
            said.get("partition-key-b64-encoded") == "true",
            properties=_properties(said),
            publish_time_ms=metadata.publish_time,
            event_time_ms=metadata.event_time,
            producer_name=metadata.producer_name,
            sequence_id=metadata.sequence_id,
        )
    ]


def _metadata(said: Mapping[str, str]) -> pb.MessageMetadata:
    metadata = pb.MessageMetadata(
        producer_name=said.get("producer-name", ""),
        sequence_id=max(0, int(said.get("sequence-id", "0"))),
        publish_time=_time_ms(said["publish-time"]),
    )
    if "event-time" in said:
        metadata.event_time = _time_ms(said["event-time"])
    return metadata


def _time_ms(text: str) -> int:
    return max(0, round(datetime.fromisoformat(text).timestamp() * 1000))


def _properties(said: Mapping[str, str]) -> dict[str, str]:
    try:
        return {str(name): str(value) for name, value in json.loads(said.get("property", "{}")).items()}
    except (ValueError, AttributeError):
        return {}
