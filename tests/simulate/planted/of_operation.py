"""Planted bugs in what operators rely on: numbers, reasons, memory."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker.broker.delivery.subscription import Subscription
from pybroker.broker.explain import subscriptions as explain
from pybroker.broker.explain.steps import Steps
from pybroker.broker.explain.subscription_state import Waiting
from pybroker.broker.topic.topic import Topic
from pybroker.ledgers.ledger_store import AppendRun
from pybroker.memory.broker_memory import Holding


def nobody_says_why_something_waits(patch: pytest.MonkeyPatch) -> None:
    def nothing(subscription: Subscription, waiting: Waiting) -> Steps:
        yield
        return []

    patch.setattr(explain, "_of_waiting", nothing)


def something_waits_where_nothing_does(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(explain, "waiting_of", lambda subscription: Waiting(1, True, False, 0))


def a_topic_counts_runs_and_not_messages(patch: pytest.MonkeyPatch) -> None:
    entries_added = Topic.entries_added

    def once(self: Topic, runs: list[AppendRun]) -> None:
        before = self.counters.messages_in
        entries_added(self, runs)
        self.counters.messages_in = min(self.counters.messages_in, before + len(runs))

    patch.setattr(Topic, "entries_added", once)


def memory_of_documents_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    def keep(self: Holding, *_: Any) -> None:
        """Nothing is given back."""

    patch.setattr(Holding, "close", keep)
