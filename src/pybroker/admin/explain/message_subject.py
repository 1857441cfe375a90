"""Explanation of one message: applies the rules of `broker/explain/messages.py`, and reads the entry if necessary."""

from __future__ import annotations

import asyncio

from pybroker.admin.calls.call import MAX_DIGITS, Call
from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.explain.messages import (
    MessageQuestion,
    Reasons,
    StoredEntry,
    TransactionSeen,
    Want,
    explain_message,
)
from pybroker.broker.topic.topic import Topic
from pybroker.compaction.view import first_at, read_view
from pybroker.errors import AdminError, DamagedEntries, NoSuchLedger, StoreError, TransactionCoordinatorNotFound
from pybroker.model.position import Position
from pybroker.model.txn_id import TxnId

READ_TIMEOUT_S = 5.0
MAX_LOOKS = 6
"""Maximum number of attempts. A topic that changes continuously is explained by its last state."""
_MAX_NUMBER = (1 << 63) - 1


def parsed_message_id(text: str) -> tuple[Position, int | None]:
    """Return position and batch index of a message id: `ledger:entry`, `ledger:entry:batchIndex`, or
    `ledger:entry:partition:batchIndex`. A batch index of -1 means no batch. Raises AdminError 400 for other text.
    """
    parts = text.split(":")
    if len(text) > 4 * MAX_DIGITS or not 2 <= len(parts) <= 4 or not all(_is_number(each) for each in parts):
        raise AdminError(
            400,
            (
                "The query parameter messageId must have the form ledger:entry or ledger:entry:batchIndex, such as "
                "17:4 or 17:4:0"
            ),
        )
    ledger_id, entry_id, *rest = map(int, parts)
    if max(ledger_id, entry_id, *rest) > _MAX_NUMBER:
        raise AdminError(400, "The query parameter messageId contains a number of more than 64 bits")
    return Position(ledger_id, entry_id), (rest[-1] if rest and rest[-1] >= 0 else None)


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(text) <= MAX_DIGITS


async def message_reasons(call: Call, topic: Topic, subscription: Subscription, text: str) -> Reasons:
    """Return the findings about the message with the id `text`. Raises AdminError 400 for an invalid id, 503 if too
    many requests view messages.
    """
    position, batch_index = parsed_message_id(text)
    asked = MessageQuestion(topic, subscription, position, batch_index)
    asked.transaction_of = lambda txn: _transaction(call, txn)
    for _ in range(MAX_LOOKS):
        found = explain_message(asked)
        if isinstance(found, Reasons):
            return found
        if found is Want.ENTRY:
            asked.known.entry = await _entry(call, topic, position)
        else:
            asked.known.is_in_view = await _is_in_view(topic, position)
    return Reasons([], of_subscription=True)


def _transaction(call: Call, txn: TxnId) -> TransactionSeen | None:
    try:
        found = call.broker.transactions.find(txn.most).state.find(txn.least)
    except TransactionCoordinatorNotFound:
        return None
    return None if found is None else TransactionSeen(found.opened_ms, found.timeout_ms, found.owner)


async def _entry(call: Call, topic: Topic, position: Position) -> StoredEntry:
    ledger = topic.ledger
    if not ledger.ledgers.has_entry(position):
        return StoredEntry(None, problem="it is deleted")
    run = ledger.read_cached(position, 1, 1)
    if run is None:
        await call.share.of_views(call.config.max_message_size)
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                run = await ledger.read_if_there(position, 1, 1)
        except TimeoutError:
            return StoredEntry(None, problem=f"it could not be read within {READ_TIMEOUT_S:g} s")
        except (DamagedEntries, NoSuchLedger) as error:
            return StoredEntry(None, problem=str(error), is_damaged=True)
        except StoreError as error:
            return StoredEntry(None, problem=str(error))
    if run is None:
        return StoredEntry(None, problem="it is deleted")
    return StoredEntry(run.payloads[0], run.message_counts[0])


async def _is_in_view(topic: Topic, position: Position) -> bool:
    view, store = topic.ledger.compacted, topic.broker_context.ledgers.store
    if view is None:
        return True
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            index = await first_at(store, view, position)
            return index < view.entries and (await read_view(store, view, index, 1, 0))[0].position == position
    except (StoreError, TimeoutError):
        return True
