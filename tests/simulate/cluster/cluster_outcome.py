"""One script of a cluster from start to verdict."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

from tests.simulate.case import Case, Finding
from tests.simulate.cluster.cluster_drawing import draw_cluster
from tests.simulate.cluster.cluster_running import run_cluster
from tests.simulate.cluster.cluster_simulation import ClusterSimulation
from tests.simulate.judge import MOST_FINDINGS, Rule, told_by_clients
from tests.simulate.leftovers import after_clients
from tests.simulate.outcome import Outcome, escaped
from tests.simulate.rules_at_rest import (
    backlogs_are_exact,
    consumers_are_where_they_think,
    nothing_is_left,
    nothing_waits_without_a_reason,
    the_run_ends,
)
from tests.simulate.rules_of_answers import busy_only_with_somebody, every_request_is_answered
from tests.simulate.rules_of_delivery import OF_DELIVERY
from tests.simulate.rules_of_publishing import (
    a_session_is_in_order,
    deduplication_is_exact,
    kept_messages_are_in_order,
    no_place_twice,
    receipted_messages_are_kept,
)
from tests.simulate.rules_of_transactions import OF_TRANSACTIONS
from tests.simulate.running import Run
from tests.simulate.script import Script

LEFT_AFTER_S = 15.0
"""By then what the last client began has ended, and all participants of transactions know of their ends."""
RULES: tuple[Rule, ...] = (
    told_by_clients,
    every_request_is_answered,
    busy_only_with_somebody,
    no_place_twice,
    a_session_is_in_order,
    receipted_messages_are_kept,
    kept_messages_are_in_order,
    deduplication_is_exact,
    *OF_DELIVERY,
    *OF_TRANSACTIONS,
    nothing_waits_without_a_reason,
    the_run_ends,
    consumers_are_where_they_think,
    nothing_is_left,
    backlogs_are_exact,
)


def judge_cluster(run: Run) -> list[Finding]:
    case = Case(run)
    return [finding for rule in RULES for finding in islice(rule(case), MOST_FINDINGS)]


def play_cluster_seed(seed: int) -> Outcome:
    return play_cluster(draw_cluster(seed))


def play_cluster(script: Script, *, keeps_history: bool = False) -> Outcome:
    """Never raises: whatever escapes is a finding."""
    outcome = Outcome(script.seed)
    began_s = time.process_time()
    cluster: ClusterSimulation | None = None

    async def scenario(made: ClusterSimulation) -> Any:
        nonlocal cluster
        cluster = made
        made.notes_commands = keeps_history
        found = await run_cluster(made, script)
        outcome.findings += [(finding.rule, finding.text) for finding in judge_cluster(found)]
        await made.sleep(LEFT_AFTER_S)
        for life in made.lives_now:
            outcome.findings += [("left after clients", f"{life.name}: {line}") for line in after_clients(life)]
        for name in made.hosts:
            await made.stop(name)

    try:
        ClusterSimulation.run(script.seed, scenario, script.settings)
    except BaseExceptionGroup as group:
        outcome.findings += [escaped(error) for error in group.exceptions]
    except (Exception, AssertionError) as error:  # noqa: BLE001
        outcome.findings.append(escaped(error))
    if cluster is not None:
        outcome.findings += cluster.violations
        outcome.findings += [("bug", bug) for bug in cluster.bugs]
        outcome.virtual_s = cluster.now_s - cluster.began_s
        outcome.crashes, outcome.turns, outcome.digest = cluster.crashes, cluster.loop.turns, cluster.digest
        if keeps_history:
            outcome.history = [str(happened) for happened in cluster.history]
        outcome.commands, outcome.pairs = cluster.coverage.commands, cluster.coverage.pairs
    outcome.took_s = time.process_time() - began_s
    return outcome
