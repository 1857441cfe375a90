"""Of a message id that is not in the topic: whether it never was, is not yet, or is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pybroker.broker.explain.message_question import MessageQuestion, Reasons, Want
from pybroker.broker.explain.steps import counted
from pybroker.model.findings import Code, Finding
from pybroker.model.position import Position

if TYPE_CHECKING:
    from pybroker.managed_ledger.managed_ledger import ManagedLedger


def absence(asked: MessageQuestion) -> Reasons | Want | None:
    """Why the entry is not there; None when it is, or the compacted view has it for this subscription."""
    ledger, position = asked.topic.ledger, asked.position
    if ledger.ledgers.has_entry(position):
        return None
    if _is_being_stored(ledger, position):
        return Reasons(
            [
                Finding(
                    Code.MESSAGE_BEING_STORED,
                    f"Message {asked.message_id} has its place and is being written to the disk, with "
                    f"{counted(ledger.pending_entries, 'entry', 'entries')} of the topic on the way.",
                    evidence={"pendingEntries": ledger.pending_entries},
                )
            ]
        )
    if _may_be_in_view(asked):
        if asked.known.is_in_view is None:
            return Want.VIEW
        if asked.known.is_in_view:
            return None
        return Reasons([compacted_away(asked)])
    gone = _gone(ledger, asked)
    return Reasons([gone if gone is not None else _never_existed(ledger, asked)])


def _is_being_stored(ledger: ManagedLedger, position: Position) -> bool:
    """Whether it has been given its number, and an append is under way."""
    end = ledger.ledgers.entry_count_of(position.ledger_id)
    return position.ledger_id == ledger.current_ledger_id and end <= position.entry_id < end + ledger.pending_entries


def replacement(asked: MessageQuestion) -> Reasons | Want | None:
    """Whether who reads compacted does not get an entry that is there, as a later one has replaced it; None: no."""
    if not _may_be_in_view(asked):
        return None
    if asked.known.is_in_view is None:
        return Want.VIEW
    return None if asked.known.is_in_view else Reasons([compacted_away(asked)])


def _may_be_in_view(asked: MessageQuestion) -> bool:
    view = asked.topic.ledger.compacted
    return (
        view is not None
        and asked.subscription.reads.compacted is not None
        and asked.position <= Position(*view.horizon)
    )


def compacted_away(asked: MessageQuestion) -> Finding:
    """Its consumers read compacted, and it is not in the view."""
    view = asked.topic.ledger.compacted
    horizon = None if view is None else str(Position(*view.horizon))
    return Finding(
        Code.COMPACTED_AWAY,
        f"Message {asked.message_id} is not in the compacted view, which has the last message of each key up to {horizon}: "
        "a later one of its key has replaced it, or it has no key.",
        waits=False,
        evidence={"horizon": horizon, "compactedEntries": 0 if view is None else view.entries},
    )


def _gone(ledger: ManagedLedger, asked: MessageQuestion) -> Finding | None:
    """Its ledger was trimmed, as far as that is remembered."""
    ledger_id, entry_id = asked.position
    gone, evidence = ledger.document.gone, _what_there_is(ledger)
    if entry_id < 0 or ledger.ledgers.has_ledger(ledger_id):
        return None
    known = next((count for each, count in gone.rows if each == ledger_id), None)
    if known is not None and entry_id < known:
        evidence["trimmedLedger"] = {"ledgerId": ledger_id, "entries": known}
        return Finding(
            Code.MESSAGE_TRIMMED,
            f"Message {asked.message_id} is gone with its ledger {ledger_id} of {counted(known, 'entry', 'entries')}: "
            "every durable subscription had acknowledged all of it, and retention did not keep it.",
            waits=False,
            evidence=evidence,
        )
    if known is None and 0 <= ledger_id <= gone.until:
        evidence["forgottenUpToLedger"] = gone.until
        return Finding(
            Code.MESSAGE_TRIMMED,
            f"Message {asked.message_id} is not there: what the topic had in ledgers up to {gone.until} is gone, and which of "
            "them were its own is not remembered.",
            waits=False,
            evidence=evidence,
        )
    return None


def _never_existed(ledger: ManagedLedger, asked: MessageQuestion) -> Finding:
    ledger_id, entry_id = asked.position
    row = ledger.ledgers.row_of(ledger_id)
    last = ledger.last_confirmed
    trimmed = next((count for each, count in ledger.document.gone.rows if each == ledger_id), None)
    if ledger_id < 0 or entry_id < 0:
        why = "ledger and entry are numbers from 0 on"
    elif row is not None and row.is_sealed:
        why = f"ledger {ledger_id} has {counted(row.entry_count, 'entry', 'entries')}, from 0 on, and gets no more"
    elif row is not None or asked.position > last:
        why = (
            f"it is beyond the end of the topic, whose last message is {last}"
            if last.entry_id >= 0
            else "the topic is empty"
        )
    elif trimmed is not None:
        why = f"ledger {ledger_id}, which is gone, had {counted(trimmed, 'entry', 'entries')}"
    else:
        why = f"ledger {ledger_id} is none of the topic's: the id is of another topic, or the ledger was empty"
    return Finding(
        Code.MESSAGE_NEVER_EXISTED,
        f"There is no message {asked.message_id}: {why}.",
        waits=False,
        evidence=_what_there_is(ledger),
    )


def outside_batch(asked: MessageQuestion, message_count: int) -> Finding:
    """The entry is there, and holds fewer messages."""
    return Finding(
        Code.MESSAGE_NEVER_EXISTED,
        f"There is no message {asked.message_id}: entry {asked.position} holds {counted(message_count, 'message')}, from 0 on.",
        waits=False,
        evidence={"batchSize": message_count},
    )


def _what_there_is(ledger: ManagedLedger) -> dict[str, Any]:
    last = ledger.last_confirmed
    return {
        "firstMessageId": str(ledger.ledgers.first_position),
        "lastMessageId": None if last.entry_id < 0 else str(last),
        "ledgers": len(ledger.ledgers),
    }
