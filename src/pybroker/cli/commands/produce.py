"""`pybroker produce`: Publish messages from arguments, files, lines of standard input, or JSON lines.

The exit code is 0 only if every message is stored. After a signal, messages that were already read are still sent.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from pybroker.cli.binary_client import UntilSignal, binary_access, run_with_client
from pybroker.cli.exit_codes import EXIT_OK, CommandFailed, Interrupted, WrongUsage, say
from pybroker.cli.message_text import NotAMessage, id_text, outgoing
from pybroker.cli.output import Output, add_json_option, output_of
from pybroker.cli.parsed_arguments import count, pair, seconds, time_ms, topic
from pybroker.cli.parsing import described
from pybroker.cli.which_broker import add_broker_options, broker_of
from pybroker.client.message import MessageId, OutgoingMessage
from pybroker.client.producing.message_producer import MessageProducer
from pybroker.client.pulsar_client import PulsarClient

EXAMPLES = """
pybroker produce orders "hello" "world" --key customer-7 --property source=shell
seq 1000 | pybroker produce numbers              one message for each line of standard input
pybroker produce pictures --file cat.png --file dog.png
printf 'k1:one\\nk2:two\\n' | pybroker produce orders --key-separator :
pybroker consume orders --until-end --json | pybroker produce copy --json-lines
pybroker produce reminders "wake up" --deliver-in 10m
"""
MAX_LINE_BYTES = 64 << 20
"""Longer lines are refused: they are probably not one message."""
_READ_BYTES = 1 << 18


def add_options(parser: argparse.ArgumentParser) -> None:
    described(parser, __doc__ or "", EXAMPLES)
    parser.add_argument("topic", type=topic, metavar="TOPIC")
    parser.add_argument(
        "values", nargs="*", metavar="VALUE", help="one message each (default: lines of standard input)"
    )
    source = parser.add_argument_group("other sources of messages")
    source.add_argument(
        "--file", action="append", default=[], type=Path, metavar="F", help="a file as one message; may be repeated"
    )
    source.add_argument(
        "--lines", type=Path, metavar="F", help="one message for each line of this file, - for standard input"
    )
    source.add_argument("-0", "--null", action="store_true", help="lines end with a null byte")
    source.add_argument("--json-lines", action="store_true", help="lines are JSON, as `consume --json` writes them")
    source.add_argument("--key-separator", metavar="X", help="the key of a line is its text before X")
    what = parser.add_argument_group("properties of each message")
    what.add_argument("-k", "--key", metavar="K", help="the key")
    what.add_argument(
        "-p",
        "--property",
        action="append",
        default=[],
        type=pair,
        metavar="NAME=VALUE",
        help="a property; may be repeated",
    )
    what.add_argument(
        "--event-time", type=time_ms, default=0, metavar="TIME", help="a time such as 2026-12-24T18:00:00Z"
    )
    delay = what.add_mutually_exclusive_group()
    delay.add_argument(
        "--deliver-at",
        type=time_ms,
        metavar="TIME",
        help="deliver the message at this time, to Shared and Key_Shared subscriptions",
    )
    delay.add_argument(
        "--deliver-in", type=seconds, metavar="T", help="deliver the message after this time: 30s, 10m, 2h"
    )
    what.add_argument("--repeat", type=count, default=1, metavar="N", help="send each VALUE and --file N times (1)")
    how = parser.add_argument_group("sending")
    how.add_argument("--name", default="", metavar="N", help="the producer's name")
    how.add_argument("--no-batching", action="store_true", help="store each message in its own entry")
    how.add_argument(
        "--batch-by-key",
        action="store_true",
        help="put different keys into different batches, for Key_Shared subscriptions",
    )
    how.add_argument(
        "--chunking", action="store_true", help="split messages that are too large into chunks; without batching"
    )
    how.add_argument("--compression", choices=("none", "lz4", "zlib", "zstd", "snappy"), default="none")
    how.add_argument(
        "--access-mode",
        choices=("shared", "exclusive", "wait_for_exclusive", "exclusive_with_fencing"),
        default="shared",
    )
    add_json_option(parser, "write one line of JSON with the message id for each stored message")
    add_broker_options(parser, is_binary=True)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    _check(options)
    access = binary_access(broker_of(options), options.topic)
    output = output_of(options)

    async def work(client: PulsarClient, until: UntilSignal) -> int:
        producer = await until.wait(
            client.producer(
                str(options.topic),
                name=options.name,
                access_mode=options.access_mode,
                compression=options.compression,
                batching=not options.no_batching and not options.chunking,
                batch_by_key=options.batch_by_key,
                chunking=options.chunking,
            )
        )
        receipts = Receipts(output)
        try:
            async with producer:
                await _send_all(producer, receipts, options, until)
        finally:
            receipts.settle()
            if not output.is_json:
                output.line(receipts.summary(str(options.topic)))
                output.flush()
        receipts.raise_failure()
        return EXIT_OK

    return run_with_client(access, work)


def _check(options: argparse.Namespace) -> None:
    takes_lines = options.lines is not None or not (options.values or options.file)
    if options.key_separator == "":
        raise WrongUsage("--key-separator needs at least one character")
    if not takes_lines and (options.null or options.json_lines or options.key_separator):
        raise WrongUsage(
            "--null, --json-lines and --key-separator work only when each line is a message: add --lines "
            "FILE, or --lines - for standard input"
        )
    if options.json_lines and (options.key_separator or options.key is not None):
        raise WrongUsage("with --json-lines, each line contains its own key: remove --key and --key-separator")
    if options.key is not None and options.key_separator:
        raise WrongUsage("--key and --key-separator exclude each other: remove one of them")


async def _send_all(
    producer: MessageProducer, receipts: Receipts, options: argparse.Namespace, until: UntilSignal
) -> None:
    template = _template(options)
    try:
        for value in _given_values(options):
            for _ in range(options.repeat):
                await until.wait(receipts.submit(producer, template._replace(value=value)))
                if receipts.failure is not None:
                    return
        if options.lines is None and (options.values or options.file):
            return
        number = 0
        async for line in _lines(options, until):
            number += 1
            await until.wait(receipts.submit(producer, _message(template, line, number, options)))
            if receipts.failure is not None:
                return
    except (Interrupted, CommandFailed):
        await producer.flush()  # send messages that were read
        raise


def _template(options: argparse.Namespace) -> OutgoingMessage:
    deliver_at_ms = options.deliver_at or 0
    if options.deliver_in is not None:
        deliver_at_ms = round((time.time() + options.deliver_in) * 1000)
    return OutgoingMessage(
        b"",
        options.key,
        properties=dict(options.property),
        event_time_ms=options.event_time,
        deliver_at_ms=deliver_at_ms,
    )


def _given_values(options: argparse.Namespace) -> Iterator[bytes]:
    for value in options.values:
        yield os.fsencode(value)
    for path in options.file:
        try:
            yield path.read_bytes()
        except OSError as error:
            raise CommandFailed(f"cannot read {path}: {error.strerror}") from error


def _message(template: OutgoingMessage, line: bytes, number: int, options: argparse.Namespace) -> OutgoingMessage:
    if options.json_lines:
        try:
            message = outgoing(line)
        except NotAMessage as error:
            raise CommandFailed(f"line {number} of the input is not a valid message: {error}") from None
        return message._replace(
            properties={**template.properties, **message.properties},
            event_time_ms=message.event_time_ms or template.event_time_ms,
            deliver_at_ms=message.deliver_at_ms or template.deliver_at_ms,
        )
    if options.key_separator:
        key, separator, value = line.partition(os.fsencode(options.key_separator))
        if not separator:
            raise CommandFailed(
                f"line {number} of the input has no separator {options.key_separator!r} between key and value"
            )
        try:
            return template._replace(key=key.decode(), value=value)
        except UnicodeDecodeError:
            raise CommandFailed(
                f"the key in line {number} of the input is not UTF-8. Use --json-lines with keyBase64 for binary keys."
            ) from None
    return template._replace(value=line)


class LineCutter:
    """Splits chunks of data into lines. An incomplete line is kept for the next chunk."""

    def __init__(self, end: bytes) -> None:
        self._end = end
        self._parts: list[bytes] = []
        self._size_bytes = 0

    @property
    def rest(self) -> bytes:
        return b"".join(self._parts)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes. Raises CommandFailed if the incomplete line has more than
        MAX_LINE_BYTES.
        """
        *whole, left = data.split(self._end)
        if whole:
            whole[0] = b"".join([*self._parts, whole[0]])
            self._parts, self._size_bytes = [], 0
        self._parts.append(left)
        self._size_bytes += len(left)
        if self._size_bytes > MAX_LINE_BYTES:
            raise CommandFailed(
                f"a line of the input has more than {MAX_LINE_BYTES} bytes: send this message with --file"
            )
        return whole


async def _lines(options: argparse.Namespace, until: UntilSignal) -> AsyncIterator[bytes]:
    end = b"\0" if options.null else b"\n"
    path = options.lines
    try:
        descriptor = sys.stdin.fileno() if path is None or str(path) == "-" else os.open(path, os.O_RDONLY)
    except OSError as error:
        raise CommandFailed(f"cannot read {path}: {error.strerror}") from error
    try:
        cutter = LineCutter(end)
        async for data in _data(descriptor, until):
            for line in cutter.feed(data):
                yield line
        if cutter.rest:
            yield cutter.rest
    except OSError as error:
        raise CommandFailed(f"the input lines cannot be read: {error.strerror}") from error
    finally:
        if path is not None and str(path) != "-":
            os.close(descriptor)


async def _data(descriptor: int, until: UntilSignal) -> AsyncIterator[bytes]:
    while True:
        await until.wait(_readable(descriptor))
        data = os.read(descriptor, _READ_BYTES)
        if not data:
            return
        yield data


async def _readable(descriptor: int) -> None:
    """Wait until a read from `descriptor` does not block. Files are always readable.

    The callback is registered for each wait, because a permanent one could fire after its data was read.
    """
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except (PermissionError, NotImplementedError):
        return
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)


class Receipts:
    """The results of published messages, counted in publish order. The producer limits the number of pending
    results.
    """

    def __init__(self, output: Output) -> None:
        self.failure: BaseException | None = None
        self._output = output
        self._pending: deque[asyncio.Future[MessageId]] = deque()
        self._stored = 0
        self._failed = 0
        self._last: MessageId | None = None

    async def submit(self, producer: MessageProducer, message: OutgoingMessage) -> None:
        self._pending.append(await producer.submit(message))
        while self._pending and self._pending[0].done():
            self._take(self._pending.popleft())

    def settle(self) -> None:
        """Count the remaining results without waiting. Unanswered messages count as not stored."""
        while self._pending:
            self._take(self._pending.popleft())

    def _take(self, receipt: asyncio.Future[MessageId]) -> None:
        is_answered = receipt.done() and not receipt.cancelled()
        failure = receipt.exception() if is_answered else CommandFailed("the broker did not confirm the message")
        if failure is not None:
            self._failed += 1
            self.failure = self.failure or failure
            return
        self._stored += 1
        self._last = receipt.result()
        if self._output.is_json:
            self._output.record({"messageId": id_text(self._last)})

    def summary(self, topic: str) -> str:
        last = "" if self._last is None else f"; the last message is {id_text(self._last)}"
        return f"{self._stored:,} message{'s' * (self._stored != 1)} stored in {topic}{last}"

    def raise_failure(self) -> None:
        if self.failure is not None:
            say(f"{self._failed:,} message{'s' * (self._failed != 1)} not stored")
            raise CommandFailed(str(self.failure) or type(self.failure).__name__)
