"""Findings about bookies: entries, ledgers, acknowledgements and topic loads that wait for a bookie.

The rules read the bookie states that the ledger store has recorded, and send no requests.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from pybroker.broker.explain.steps import LISTED, counted, for_long, wall_ms
from pybroker.ledgers.bookie_report import SLOW_APPEND_MS, BookieCondition, BookieReport, BookiesReport
from pybroker.model.findings import Code, Finding

if TYPE_CHECKING:
    from pybroker.broker.delivery.subscription import Subscription
    from pybroker.broker.topic.topic import Topic
    from pybroker.ledgers.ledger_store import LedgerStore
    from pybroker.model.names import TopicName
    from pybroker.runtime.clock import Clock

_SHOWN = 3


def of_broker(store: LedgerStore, clock: Clock) -> list[Finding]:
    """Return a finding: the broker cannot create ledgers because too few bookies are usable, or some bookies are
    unusable. Empty without such a problem, and if ledgers are not on BookKeeper.
    """
    report = store.bookies()
    if report is None or (report.refusal is None and not report.unusable):
        return []
    if report.refusal is not None:
        return [_too_few("No ledger can be created", report, clock)]
    text = f"{counted(len(report.unusable), 'bookie', 'bookies')} of {len(report.bookies)} cannot be used"
    return [
        Finding(
            Code.BOOKIES_NOT_USABLE,
            f"{text}: {_names(report.unusable, clock)}. Enough other bookies are writable.",
            waits=False,
            since_ms=_since_ms(report.unusable),
            evidence=_evidence(report.unusable),
        )
    ]


def of_stored_topic(topic: Topic) -> list[Finding]:
    """Return findings that explain why entries of a loaded topic wait for bookies."""
    ledger, clock = topic.ledger, topic.runtime.clock
    store = topic.broker_context.ledgers.store
    report = store.bookies()
    if report is None:
        return []
    wait = store.append_wait(ledger.current_ledger_id)
    if wait is not None:
        since_ms = wall_ms(wait.since_ms, clock)
        unusable = _among(report, wait.ensemble)
        silent = _names(unusable, clock) if unusable else "no failure of a bookie is known yet"
        return [
            Finding(
                Code.ACK_QUORUM_UNREACHABLE,
                f"{counted(ledger.pending_entries, 'entry waits', 'entries wait')}{for_long(since_ms, clock)} until"
                f" {wait.ack_quorum} bookies have stored the entries in ledger {wait.ledger_id}: {silent}.",
                since_ms=since_ms,
                evidence={
                    "ledgerId": wait.ledger_id,
                    "pendingEntries": ledger.pending_entries,
                    "ackQuorum": wait.ack_quorum,
                    "ensemble": list(wait.ensemble),
                    **_evidence(unusable),
                },
            )
        ]
    if not (ledger.is_changing_ledger or ledger.is_write_failed):
        return []
    if report.refusal is not None:
        return [_too_few(f"The next ledger of {topic.name} cannot be created", report, clock, ledger.pending_entries)]
    if not ledger.is_changing_ledger or not ledger.change_error or not report.unusable:
        return []
    since_ms = wall_ms(ledger.changing_since_ms, clock)
    return [
        Finding(
            Code.ACK_QUORUM_UNREACHABLE,
            f"{counted(ledger.pending_entries, 'entry waits', 'entries wait')}{for_long(since_ms, clock)} until ledger"
            f" {ledger.current_ledger_id} can be closed: {ledger.change_error.rstrip('.')};"
            f" {_names(report.unusable, clock)}.",
            since_ms=since_ms,
            evidence={
                "ledgerId": ledger.current_ledger_id,
                "pendingEntries": ledger.pending_entries,
                "error": ledger.change_error,
                **_evidence(report.unusable),
            },
        )
    ]


def of_unloaded_topic(name: TopicName, report: BookiesReport | None, failure: str, clock: Clock) -> list[Finding]:
    """Return a finding about unusable bookies that the broker may need to load topic `name`; empty if all bookies are
    usable. `report` is None if ledgers are not on BookKeeper. `failure`: the error of the last load, or "".
    """
    if report is None or (report.refusal is None and not report.unusable):
        return []
    error = f" ({failure.rstrip('.')})" if failure else ""
    unusable = _names(report.unusable, clock) or report.refusal
    return [
        Finding(
            Code.RECOVERY_LACKS_BOOKIES,
            f"Topic {name} cannot be opened{error}. Its last ledger or its cursors may need a bookie that cannot be used:"
            f" {unusable}.",
            since_ms=_since_ms(report.unusable),
            evidence=_evidence(report.unusable) | ({"error": failure} if failure else {}),
        )
    ]


def of_cursor(topic: Topic, subscription: Subscription) -> list[Finding]:
    """Return findings that explain why acknowledgements of a subscription are not stored on bookies."""
    cursor, clock = subscription.cursor, topic.runtime.clock
    report = topic.broker_context.ledgers.store.bookies()
    if report is None:
        return []
    wait_ms, failing_ms = cursor.write_wait_ms, cursor.failing_for_ms
    longest_ms = max(wait_ms or 0.0, failing_ms or 0.0)
    if longest_ms < SLOW_APPEND_MS:
        return []
    since_ms = round(clock.wall_ms() - longest_ms)
    reason = cursor.write_error.rstrip(".") if failing_ms else "the write has not been confirmed"
    bookies = f"; {_names(report.unusable, clock)}" if report.unusable else ""
    return [
        Finding(
            Code.CURSOR_WRITES_WAIT,
            f"Acknowledgements of subscription {subscription.name} have not been stored{for_long(since_ms, clock)}:"
            f" {reason}{bookies}.",
            since_ms=since_ms,
            evidence={"failedWrites": cursor.failed_writes, "waitingRequests": cursor.waiting_requests}
            | _evidence(report.unusable),
        )
    ]


def _too_few(text: str, report: BookiesReport, clock: Clock, pending_entries: int | None = None) -> Finding:
    unusable = report.unusable
    missing = f": {_names(unusable, clock)}" if unusable else ""
    waiting = "" if not pending_entries else f" {counted(pending_entries, 'entry waits', 'entries wait')}."
    evidence: dict[str, Any] = {"needed": report.needed, "writable": report.writable_count}
    if pending_entries is not None:
        evidence["pendingEntries"] = pending_entries
    return Finding(
        Code.BOOKIES_TOO_FEW,
        f"{text}: {report.refusal}{missing}.{waiting}",
        since_ms=_since_ms(unusable),
        evidence=evidence | _evidence(unusable),
    )


def _among(report: BookiesReport, ensemble: Collection[str]) -> list[BookieReport]:
    """Return the bookies of an ensemble that accept no entries."""
    return [
        each
        for each in report.unusable
        if each.bookie_id in ensemble and each.condition is not BookieCondition.QUARANTINED
    ]


def _names(bookies: list[BookieReport], clock: Clock) -> str:
    shown = []
    for each in bookies[:_SHOWN]:
        failure = f" ({each.failure})" if each.failure else ""
        shown.append(f"bookie {each.bookie_id} is {each.condition.value}{for_long(each.since_ms, clock)}{failure}")
    more = f", and {len(bookies) - _SHOWN:,} more" if len(bookies) > _SHOWN else ""
    return ", ".join(shown) + more


def _since_ms(bookies: list[BookieReport]) -> int | None:
    return max((each.since_ms for each in bookies if each.since_ms is not None), default=None)


def _evidence(bookies: list[BookieReport]) -> dict[str, Any]:
    return {
        "bookies": [
            {
                "bookie": each.bookie_id,
                "condition": each.condition.value,
                "since": each.since_ms,
                "failures": each.failure_count,
                "lastFailure": each.failure or None,
            }
            for each in bookies[:LISTED]
        ],
        "moreBookies": max(0, len(bookies) - LISTED),
    }
