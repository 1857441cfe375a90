"""Shares of a micro-batch: everybody gets on, limits hold but for one entry each, nothing is left that somebody could take."""

from hypothesis import given
from hypothesis import strategies as st

from pybroker.reading.positions import Place, PlannedLedger, SparsePoint, TopicPlan
from pybroker.spark.reader.admission import Limits, admit, backlog_bytes, entry_count, until

ENTRY_BYTES = 100


def plan_of(*entry_counts: int, topic: str = "t", entry_bytes: int = ENTRY_BYTES, messages_each: int = 1) -> TopicPlan:
    """Ledgers 1, 2, ... with so many entries of one size."""
    ledgers = tuple(
        PlannedLedger(number, 0, count, count * entry_bytes, count * messages_each, True)
        for number, count in enumerate(entry_counts, 1)
    )
    end = Place(len(entry_counts), entry_counts[-1])
    return TopicPlan(topic, Place(1, 0), end, Place(1, 0), ledgers)


@st.composite
def plans(draw: st.DrawFn) -> TopicPlan:
    ledgers = []
    for number in sorted(draw(st.sets(st.integers(1, 40), min_size=1, max_size=5))):
        sizes = draw(st.lists(st.integers(1, 5000), max_size=30))
        first = draw(st.integers(0, 10))
        points = sorted(draw(st.sets(st.integers(0, max(len(sizes) - 1, 0)), max_size=4))) if sizes else []
        counted = draw(st.booleans())
        ledgers.append(
            PlannedLedger(
                number,
                first,
                first + len(sizes),
                sum(sizes) if draw(st.booleans()) else -1,
                2 * len(sizes) if counted else -1,
                True,
                tuple(SparsePoint(first + p, 7 + sum(sizes[:p]), 2 * p if counted else -1) for p in points),
            )
        )
    start = Place(ledgers[0].ledger_id, ledgers[0].first_entry_id)
    end = Place(ledgers[-1].ledger_id, ledgers[-1].end_entry_id)
    return TopicPlan("t", start, end, start, tuple(ledgers))


@given(st.lists(plans(), max_size=6), st.integers(0, 100_000), st.integers(0, 200))
def test_every_topic_with_a_backlog_gets_on_and_none_beyond_its_end(
    asked: list[TopicPlan], max_bytes: int, max_messages: int
) -> None:
    ends = admit(asked, Limits(max_bytes, max_messages))
    for plan, end in zip(asked, ends, strict=True):
        assert plan.start <= end <= plan.end
        if entry_count(plan):
            assert entry_count(until(plan, end)) >= 1


@given(st.lists(plans(), max_size=6))
def test_without_limits_everything_is_taken(asked: list[TopicPlan]) -> None:
    assert admit(asked, Limits()) == [plan.end for plan in asked]


@given(st.lists(plans(), min_size=1, max_size=6), st.integers(0, 100_000))
def test_repeating_it_reads_every_entry_once_and_ends(asked: list[TopicPlan], max_bytes: int) -> None:
    left, seen = list(asked), [0] * len(asked)
    for _ in range(1 + sum(map(entry_count, asked))):
        if not any(map(entry_count, left)):
            break
        ends = admit(left, Limits(max_bytes))
        for index, (plan, end) in enumerate(zip(left, ends, strict=True)):
            seen[index] += entry_count(until(plan, end))
            left[index] = after(plan, end)
    assert seen == [entry_count(plan) for plan in asked]


def after(plan: TopicPlan, start: Place) -> TopicPlan:
    """What is left of a plan."""
    ledgers = []
    for ledger in plan.ledgers:
        first = max(ledger.first_entry_id, start.entry_id if ledger.ledger_id == start.ledger_id else 0)
        if ledger.ledger_id < start.ledger_id or first >= ledger.end_entry_id:
            continue
        part = ledger.end_entry_id - first
        size = ledger.size_bytes * part // (ledger.end_entry_id - ledger.first_entry_id)
        ledgers.append(PlannedLedger(ledger.ledger_id, first, ledger.end_entry_id, size, part, True))
    return TopicPlan(plan.topic, start, plan.end, plan.first, tuple(ledgers))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(0, 20_000))
def test_a_limit_of_bytes_is_passed_by_one_entry_of_each_topic_at_most(counts: list[int], max_bytes: int) -> None:
    asked = [plan_of(count) for count in counts]
    taken = sum(
        backlog_bytes(until(plan, end)) for plan, end in zip(asked, admit(asked, Limits(max_bytes)), strict=True)
    )
    assert taken <= max(max_bytes, len(counts) * ENTRY_BYTES)
    # And nothing is left that another entry of anybody would have fitted into.
    assert taken == sum(counts) * ENTRY_BYTES or max_bytes - taken < ENTRY_BYTES


def test_shares_are_in_proportion_to_the_backlog() -> None:
    ends = admit([plan_of(900), plan_of(100)], Limits(size_bytes=100 * ENTRY_BYTES))
    assert ends == [Place(1, 90), Place(1, 10)]


def test_what_one_cannot_use_another_gets() -> None:
    large, small = plan_of(10, entry_bytes=60_000), plan_of(1000, entry_bytes=100)
    ends = admit([large, small], Limits(size_bytes=100_000))
    # The share of the large one is 85,714: one entry. What is over goes to where it fits.
    assert ends == [Place(1, 1), Place(1, 400)]


def test_messages_are_limited_beside_bytes() -> None:
    batched = plan_of(100, messages_each=50)
    assert admit([batched], Limits(message_count=500)) == [Place(1, 10)]
    assert admit([batched], Limits(size_bytes=300, message_count=500)) == [Place(1, 3)]


def test_entries_of_which_nobody_counted_messages_count_as_one() -> None:
    ledger = PlannedLedger(1, 0, 100, 100 * ENTRY_BYTES, -1, False)
    plan = TopicPlan("t", Place(1, 0), Place(1, 100), Place(1, 0), (ledger,))
    assert admit([plan], Limits(message_count=7)) == [Place(1, 7)]


def test_a_share_goes_over_ledgers_and_leaves_out_empty_ones() -> None:
    assert admit([plan_of(5, 0, 10)], Limits(size_bytes=8 * ENTRY_BYTES)) == [Place(3, 3)]


def test_sparse_points_say_where_the_bytes_are() -> None:
    points = (SparsePoint(0, 0, 0), SparsePoint(10, 10_000, 10), SparsePoint(20, 10_100, 20))
    ledger = PlannedLedger(1, 0, 30, 10_200, 30, True, points)
    plan = TopicPlan("t", Place(1, 0), Place(1, 30), Place(1, 0), (ledger,))
    assert admit([plan], Limits(size_bytes=5_000)) == [Place(1, 5)]
    assert admit([plan], Limits(size_bytes=10_150)) == [Place(1, 25)]
    assert backlog_bytes(until(plan, Place(1, 20))) == 10_100
