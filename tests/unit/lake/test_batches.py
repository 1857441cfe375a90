"""What a commit takes of its topics, and how that is shared among workers."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.lake.batches import Batch, choose, shares
from pybroker.reading.positions import EntryRange, Place, PlannedLedger, SparsePoint, TopicPlan


def plan_of(topic: str, *counts: int, entry_bytes: int = 100, start: Place | None = None) -> TopicPlan:
    """Ledgers 1, 2, ... of so many entries, all of one size, with a point at every tenth one."""
    ledgers = tuple(
        PlannedLedger(
            number,
            0,
            count,
            count * entry_bytes,
            count,
            True,
            tuple(SparsePoint(i, i * entry_bytes, i) for i in range(10, count, 10)),
        )
        for number, count in enumerate(counts, 1)
    )
    return TopicPlan(topic, start or Place(1, 0), Place(len(counts), counts[-1]), Place(1, 0), ledgers)


def entries_of(ranges: list[EntryRange]) -> list[tuple[str, int, int]]:
    return [(r.topic, r.ledger_id, i) for r in ranges for i in range(r.first_entry_id, r.end_entry_id)]


def test_all_is_taken_when_it_fits_and_the_place_is_the_end_of_the_plan() -> None:
    batch = choose([plan_of("a", 20, 0, 30)], 10_000)
    assert len(entries_of([piece.entries for piece in batch.pieces])) == 50
    assert batch.positions == {"a": Place(3, 30)}
    assert (batch.size_bytes, batch.remaining_bytes) == (5000, 0)


def test_a_batch_is_cut_at_points_that_the_plan_gives() -> None:
    batch = choose([plan_of("a", 100)], 3_500)
    assert batch.positions == {"a": Place(1, 30)}
    assert batch.remaining_bytes == 7000


def test_each_topic_gets_a_part_by_its_backlog_and_the_smallest_at_least_one_entry() -> None:
    batch = choose([plan_of("large", 1000), plan_of("small", 1)], 10_000)
    assert batch.positions["small"] == Place(1, 1)
    assert 50 <= batch.positions["large"].entry_id <= 100


def test_a_position_moves_past_what_is_empty() -> None:
    empty = TopicPlan("a", Place(1, 5), Place(4, 0), Place(1, 0), ())
    batch = choose([empty], 100)
    assert batch.is_empty
    assert batch.positions == {"a": Place(4, 0)}


@settings(deadline=None)  # the machine may be busy with something else
@given(
    st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(1, 50_000),
    st.integers(1, 5),
    st.integers(1, 5_000),
)
def test_batches_one_after_another_take_every_entry_once_in_order(
    counts: list[list[int]], limit_bytes: int, workers: int, least_bytes: int
) -> None:
    left = {str(index): plan_of(str(index), *ledgers) for index, ledgers in enumerate(counts)}
    wanted = {
        topic: entries_of([EntryRange(topic, led.ledger_id, 0, led.end_entry_id) for led in p.ledgers])
        for topic, p in left.items()
    }
    taken: dict[str, list[tuple[str, int, int]]] = {topic: [] for topic in left}
    for _ in range(sum(map(sum, counts)) + 2):
        batch = choose(list(left.values()), limit_bytes)
        parts = shares(batch, workers, least_bytes)
        assert len(parts) <= workers
        assert all(parts)
        for entry in entries_of([entries for part in parts for entries in part]):
            taken[entry[0]].append(entry)
        left = {topic: rest_of(plan, batch) for topic, plan in left.items()}
        if batch.is_empty:
            break
    assert taken == wanted


def rest_of(plan: TopicPlan, batch: Batch) -> TopicPlan:
    place = batch.positions.get(plan.topic, plan.start)
    ledgers = tuple(
        PlannedLedger(
            led.ledger_id,
            max(led.first_entry_id, place.entry_id if led.ledger_id == place.ledger_id else 0),
            led.end_entry_id,
            100
            * (led.end_entry_id - max(led.first_entry_id, place.entry_id if led.ledger_id == place.ledger_id else 0)),
            -1,
            True,
            led.points,
        )
        for led in plan.ledgers
        if Place(led.ledger_id, led.end_entry_id) > place
    )
    return TopicPlan(plan.topic, place, plan.end, plan.first, ledgers)
