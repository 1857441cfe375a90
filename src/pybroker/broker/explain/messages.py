"""What became of one message of a subscription: who has it, what it waits for, or why nobody gets it any more.

A row of rules, each of which knows one place where a message can be. The first that knows it answers; so the order is that in which
one place excludes those behind it. What holds up a whole subscription, consumer or key is said by their rules, in front.
"""

from __future__ import annotations

from collections.abc import Callable

from pybroker.broker.explain.message_absence import absence, replacement
from pybroker.broker.explain.message_ends import acknowledged, acknowledged_in_batch, hidden, out_of_batch
from pybroker.broker.explain.message_places import damaged, delayed, held_by_consumer, not_reached, passed, waiting
from pybroker.broker.explain.message_question import MessageQuestion, Reasons, Want
from pybroker.broker.explain.message_transactions import behind_transaction, held_by_transaction


def explain_message(asked: MessageQuestion) -> Reasons | Want:
    """Where the message is, or what has to be looked up first."""
    rules: tuple[Callable[[MessageQuestion], Reasons | Want | None], ...] = (
        absence,
        out_of_batch,
        hidden,
        replacement,
        acknowledged,
        acknowledged_in_batch,
        held_by_transaction,
        held_by_consumer,
        behind_transaction,
        damaged,
        delayed,
        waiting,
        not_reached,
    )
    for rule in rules:
        found = rule(asked)
        if found is not None:
            return found
    return passed(asked)
