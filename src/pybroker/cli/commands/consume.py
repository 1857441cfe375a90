"""`pybroker consume`: Receive messages of a subscription, or read a topic, and write them to standard output.

With a subscription, a message is acknowledged after it is written. Without one, the broker stores no position.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import BinaryIO

from pybroker.cli.binary_client import UntilSignal, binary_access, run_with_client
from pybroker.cli.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_TOO_FEW, WrongUsage, say
from pybroker.cli.message_text import message_document, message_line
from pybroker.cli.output import Output, add_json_option, output_of
from pybroker.cli.parsed_arguments import Start, count, seconds, start, topic
from pybroker.cli.parsing import described
from pybroker.cli.which_broker import add_broker_options, broker_of
from pybroker.client.consuming.message_consumer import EndOfTopic, MessageConsumer
from pybroker.client.failures import ConnectionLost, RequestTimedOut
from pybroker.client.message import EARLIEST, LATEST, Message, MessageId
from pybroker.client.pulsar_client import PulsarClient
from pybroker.wire.compression import DamagedPayload

EXAMPLES = """
pybroker consume orders -s billing                        until Ctrl-C; acknowledges each message after writing it
pybroker consume orders -s billing --type shared -n 10 --wait 5s
pybroker consume orders -s look --from earliest --no-ack  does not acknowledge: messages are delivered again
pybroker consume orders --until-end --json > orders.jsonl all stored messages, without a subscription
pybroker consume orders --from 2026-11-23T04:00:00Z --until-end
pybroker consume pictures -n 1 --values --no-newline > picture.png
"""
DEFAULT_QUEUE = 1000
MAX_QUEUE = 1_000_000
MAX_AT_ONCE = 100
"""Messages that are written before one acknowledgement request."""


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    parser.add_argument("topics", type=topic, nargs="+", metavar="TOPIC")
    parser.add_argument(
        "-s",
        "--subscription",
        metavar="S",
        help="receive messages of this subscription (default: read the topic without a subscription)",
    )
    parser.add_argument(
        "-t",
        "--type",
        choices=("exclusive", "shared", "failover", "key_shared"),
        default="exclusive",
        help="type of the subscription (exclusive)",
    )
    parser.add_argument(
        "--from",
        dest="start",
        type=start,
        metavar="W",
        help="first message of a new subscription: earliest or latest (latest); without a subscription: also LEDGER:ENTRY "
        "or a time (earliest)",
    )
    parser.add_argument("-n", "--count", type=count, metavar="N", help="end after N messages")
    parser.add_argument(
        "--wait",
        type=seconds,
        metavar="T",
        help="end if no message arrives for this time; exit code 4 if fewer than N arrived",
    )
    parser.add_argument(
        "--until-end", action="store_true", help="end after the last stored message; only without a subscription"
    )
    acks = parser.add_mutually_exclusive_group()
    acks.add_argument(
        "--ack", dest="acks", action="store_true", default=True, help="acknowledge messages that were written (default)"
    )
    acks.add_argument(
        "--no-ack", dest="acks", action="store_false", help="acknowledge nothing: all messages are delivered again"
    )
    parser.add_argument(
        "--batch-index-ack",
        action="store_true",
        help="acknowledge the messages of a batch one by one, if the broker supports it",
    )
    parser.add_argument("--name", default="", metavar="N", help="the consumer's name")
    parser.add_argument(
        "--compacted", action="store_true", help="read only the last message of each key, if the topic is compacted"
    )
    parser.add_argument(
        "--queue",
        type=count,
        default=DEFAULT_QUEUE,
        metavar="N",
        help=f"maximum number of messages in the receiver queue ({DEFAULT_QUEUE})",
    )
    add_json_option(parser, "write one line of JSON for each message")
    parser.add_argument(
        "--values", action="store_true", help="write only the values, as raw bytes, each followed by a line feed"
    )
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument(
        "-0", "--null", action="store_true", help="with --values: write a null byte after each value instead"
    )
    ends.add_argument("--no-newline", action="store_true", help="with --values: write nothing after each value")
    add_broker_options(parser, is_binary=True)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    _check(options)
    access = binary_access(broker_of(options), options.topics[0])
    writer = Writer(output_of(options), _end_of_value(options))

    async def work(client: PulsarClient, until: UntilSignal) -> int:
        consumer = await until.wait(_open(client, options))
        async with consumer:
            if options.subscription is None and options.start is not None and options.start.time_ms is not None:
                await until.wait(consumer.seek(publish_time_ms=options.start.time_ms))
            return await Session(consumer, writer, options, until).run()

    return run_with_client(access, work)


def _check(options: argparse.Namespace) -> None:
    if options.queue > MAX_QUEUE:
        raise WrongUsage(f"--queue is too large: the maximum is {MAX_QUEUE:,} messages")
    if options.subscription is None:
        if len(options.topics) > 1:
            raise WrongUsage(
                "only one topic can be read without a subscription: add --subscription to receive from several topics"
            )
        if options.type != "exclusive" or options.name or not options.acks or options.batch_index_ack:
            raise WrongUsage("--type, --name, --no-ack and --batch-index-ack need a subscription: add --subscription")
    else:
        if options.until_end:
            raise WrongUsage("--until-end works only without --subscription: use --wait with a subscription")
        if options.start is not None and not options.start.word:
            raise WrongUsage(
                "--from: the value of a new subscription must be earliest or latest; a message id or a time "
                "works only without --subscription"
            )
    if options.values and options.json:
        raise WrongUsage("--values and --json exclude each other: remove one of them")
    if (options.null or options.no_newline) and not options.values:
        raise WrongUsage("--null and --no-newline work only with --values: add --values")


def _end_of_value(options: argparse.Namespace) -> bytes | None:
    if not options.values:
        return None
    return b"\0" if options.null else b"" if options.no_newline else b"\n"


async def _open(client: PulsarClient, options: argparse.Namespace) -> MessageConsumer:
    # A larger queue would take messages away from other consumers.
    queue = min(options.queue, options.count or options.queue)
    if options.subscription is None:
        return await client.reader(
            str(options.topics[0]),
            _first(options.start),
            read_compacted=options.compacted,
            queue_messages=queue,
        )
    return await client.consumer(
        [str(each) for each in options.topics],
        options.subscription,
        kind=options.type,
        name=options.name,
        from_earliest=options.start is not None and options.start.word == "earliest",
        read_compacted=options.compacted,
        queue_messages=queue,
        keeps_batch_bits=options.batch_index_ack,
    )


def _first(given: Start | None) -> MessageId:
    if given is None or given.word == "earliest" or given.time_ms is not None:
        return EARLIEST
    if given.id is None:
        return LATEST
    return MessageId(given.id.ledger_id, given.id.entry_id, given.id.partition, given.id.batch_index)


class Writer:
    """Writes messages to the output and flushes it after each."""

    def __init__(self, output: Output, end_of_value: bytes | None) -> None:
        self._output = output
        self._end = end_of_value
        self._bytes: BinaryIO | None = None if end_of_value is None else sys.stdout.buffer

    def write(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if self._bytes is not None:
                self._bytes.write((message.value or b"") + (self._end or b""))
            elif self._output.is_json:
                self._output.record(message_document(message))
            else:
                self._output.line(message_line(message))
        if self._bytes is not None:
            self._bytes.flush()
        self._output.flush()


class Session:
    """Receives messages, writes them, then acknowledges them, so that a message that could not be written is
    redelivered.
    """

    def __init__(
        self, consumer: MessageConsumer, writer: Writer, options: argparse.Namespace, until: UntilSignal
    ) -> None:
        self._consumer = consumer
        self._writer = writer
        self._until = until
        self._wait_s: float | None = options.wait
        self._most: int | None = options.count
        self._stops_at_end: bool = options.until_end
        self._acks: bool = options.acks and options.subscription is not None
        self._taken = 0
        self._damaged = 0

    async def run(self) -> int:
        """Receive and write messages until an option (`-n`, `--wait` or `--until-end`) ends the session, or all topics
        are terminated and read. Return the exit code. Raises Interrupted, or the error that ends the consumer.
        """
        while self._most is None or self._taken < self._most:
            if self._stops_at_end and not await self._until.wait(self._consumer.has_more()):
                break
            try:
                messages = await self._until.wait(self._receive())
            except (EndOfTopic, RequestTimedOut):
                break
            except DamagedPayload as error:
                self._damaged += 1
                say(f"a message cannot be read and stays unacknowledged: {error}")
                continue
            self._writer.write(messages)
            self._taken += len(messages)
            if self._acks:
                await self._acknowledge(messages)
        if self._most is not None and self._taken < self._most:
            return EXIT_TOO_FEW
        return EXIT_FAILED if self._damaged else EXIT_OK

    async def _acknowledge(self, messages: Sequence[Message]) -> None:
        try:
            await self._consumer.ack(*messages, wants_receipt=True)
        except ConnectionLost as error:  # the consumer reconnects
            say(f"{len(messages)} acknowledgements may be lost, and these messages may be delivered again: {error}")

    async def _receive(self) -> list[Message]:
        left = MAX_AT_ONCE if self._most is None else min(MAX_AT_ONCE, self._most - self._taken)
        return await self._consumer.receive_some(left, self._wait_s)
