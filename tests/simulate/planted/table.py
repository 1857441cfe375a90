"""All planted bugs: what each puts back, and whether it takes two at the same time to meet it.

Many are planted for the models of parts as well (`tests/fuzz`): the simulator has to find them from outside, by what clients see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.fuzz import test_dispatch_bugs as dispatch
from tests.fuzz import test_managed_ledger_bugs as ledgers
from tests.simulate.cluster.cluster_drawing import draw_cluster
from tests.simulate.cluster.cluster_outcome import play_cluster, play_cluster_seed
from tests.simulate.outcome import play_seed
from tests.simulate.planted import at_once, of_operation, of_transactions, plain
from tests.simulate.planted.of_cluster import CLUSTER_BUGS
from tests.simulate.planted.of_policies import POLICY_BUGS
from tests.simulate.planted.of_shared_metadata import SHARED_METADATA_BUGS
from tests.simulate.shared_metadata_story import SharedMetadataStory
from tests.support.planting import Plant

Play = Callable[[int], list[tuple[str, str]]]


def _findings_of_seed(seed: int) -> list[tuple[str, str]]:
    return play_seed(seed).findings


def _findings_of_story(seed: int) -> list[tuple[str, str]]:
    return [("shared metadata", finding) for finding in SharedMetadataStory.play(seed).findings]


def _findings_of_cluster(seed: int) -> list[tuple[str, str]]:
    return play_cluster_seed(seed).findings


def _findings_of_policies(seed: int) -> list[tuple[str, str]]:
    return play_cluster(draw_cluster(seed, has_policies=True)).findings


class Planted(NamedTuple):
    """One bug; `seeds` is how many are tried at most, `play` what is played with each."""

    plant: Plant
    is_race: bool
    seeds: int
    play: Play = _findings_of_seed

    @property
    def name(self) -> str:
        return self.plant.__name__


def _race(plant: Plant, seeds: int = 400) -> Planted:
    return Planted(plant, is_race=True, seeds=seeds)


def _plain(plant: Plant, seeds: int = 200) -> Planted:
    return Planted(plant, is_race=False, seeds=seeds)


PLANTED = (
    _race(at_once.subscriptions_have_no_locks),
    _race(at_once.a_lock_is_never_passed_on),
    _race(at_once.a_reader_takes_the_place_of_a_subscription_in_the_making),
    _race(at_once.a_topic_that_is_closed_refuses),
    _race(at_once.a_topic_is_loaded_while_it_is_being_closed),
    _race(at_once.a_topic_is_loaded_twice_at_once),
    _race(at_once.a_close_does_not_wait_for_what_was_sent),
    _race(at_once.a_seek_leaves_consumers_where_they_are),
    _race(at_once.a_seek_keeps_what_is_unacknowledged),
    _race(at_once.a_key_goes_on_elsewhere_while_it_is_held),
    _race(at_once.a_drained_key_tells_nobody),
    _race(at_once.who_leaves_takes_its_keys_along),
    _race(at_once.dead_consumers_are_not_asked_whether_they_live),
    _race(at_once.dead_producers_are_not_asked_whether_they_live),
    _race(at_once.who_says_nothing_lives_for_ever),
    _race(at_once.who_waits_for_exclusive_access_is_forgotten),
    _race(at_once.exclusive_access_is_given_twice),
    _race(at_once.what_comes_behind_a_fence_is_dropped),
    _race(at_once.who_is_fenced_out_keeps_its_producer),
    _race(at_once.producers_are_not_told_that_they_are_closed),
    _race(at_once.consumers_are_not_told_that_they_are_closed),
    _race(at_once.who_is_gone_while_it_attaches_stays),
    _race(at_once.a_connection_keeps_its_places),
    _race(ledgers.receipts_come_before_the_sync),
    _race(ledgers.ack_receipts_do_not_wait),
    _plain(plain.an_answer_to_an_ack_is_lost),
    _plain(plain.an_ack_is_answered_twice),
    _plain(plain.receipts_come_in_another_order),
    _plain(plain.receipts_name_the_first_place_of_a_run),
    _plain(plain.statistics_are_answered_with_a_success),
    _plain(plain.a_backlog_counts_what_is_acknowledged),
    _plain(plain.an_ack_takes_the_next_entry_along),
    _plain(plain.a_cumulative_ack_takes_the_next_entry_along),
    _plain(plain.who_leaves_keeps_what_it_holds),
    _plain(dispatch.the_limit_is_never_lifted),
    _plain(plain.more_permits_wake_nobody),
    _plain(plain.a_reader_leaves_its_subscription_behind),
    _plain(plain.delayed_messages_are_not_delayed),
    _plain(plain.nobody_rings_when_it_is_time),
    _plain(plain.what_is_due_is_not_found),
    _plain(plain.a_terminated_topic_takes_more),
    _plain(plain.messages_are_sent_with_the_payload_of_their_neighbour),
    _plain(ledgers.a_ledger_id_is_given_again_after_a_crash),
    _plain(ledgers.recovery_counts_one_entry_less),
    _plain(dispatch.no_leftovers),
    _plain(plain.the_rest_of_a_batch_comes_whole_again),
    _race(of_transactions.readers_see_open_transactions),
    _plain(of_transactions.aborted_messages_are_not_hidden),
    _plain(of_transactions.markers_are_delivered),
    _race(of_transactions.nothing_of_a_buffer_is_read_again),
    _plain(of_transactions.a_commit_forgets_what_it_acknowledged),
    _plain(of_transactions.an_abort_acknowledges),
    _plain(of_transactions.an_abort_gives_nothing_back),
    _race(of_transactions.what_is_held_is_delivered),
    _race(of_transactions.two_transactions_hold_one_message),
    _race(of_transactions.what_is_acknowledged_is_taken_again),
    _plain(of_transactions.the_last_that_takes_part_is_not_told),
    _plain(of_transactions.time_never_ends_a_transaction),
    _race(of_transactions.an_open_transaction_is_lost_from_the_log),
    _race(of_transactions.ids_of_transactions_begin_anew_after_a_crash),
    _plain(of_operation.nobody_says_why_something_waits),
    _plain(of_operation.something_waits_where_nothing_does),
    _plain(of_operation.a_topic_counts_runs_and_not_messages),
    _plain(of_operation.memory_of_documents_is_not_given_back),
    *(Planted(plant, is_race=True, seeds=200, play=_findings_of_story) for plant in SHARED_METADATA_BUGS),
    *(Planted(plant, is_race=True, seeds=400, play=_findings_of_cluster) for plant in CLUSTER_BUGS),
    *(Planted(plant, is_race=True, seeds=100, play=_findings_of_policies) for plant in POLICY_BUGS),
)
