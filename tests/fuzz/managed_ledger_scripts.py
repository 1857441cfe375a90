"""Scripts of steps: drawn from a seed, run, made shorter when they fail, and printed so that they can be run again."""

from __future__ import annotations

import traceback
from random import Random

from tests.fuzz.managed_ledger_steps import STEPS, Steps

Step = tuple[str, dict[str, int]]
MAX_RUNS_TO_SHORTEN = 400
OPENING: list[Step] = [
    ("open_topic", {"name": 0}),
    ("create_cursor", {"topic": 0, "name": 0, "entry": -2, "durable": 1}),
    ("append", {"topic": 0, "runs": 1, "size": 40, "count": 3, "waits": 1}),
]
# Ledgers that are acknowledged, between ledgers that are not.
GAP: list[Step] = [
    ("set_retention", {"topic": 0, "time_ms": 0, "size": 0}),
    *[("append", {"topic": 0, "runs": 1, "size": 40, "count": 9, "waits": 1}), ("time_passes", {"tenths": 1})] * 5,
    ("acknowledge_ledger", {"topic": 0, "cursor": 0, "entry": 15, "receipt": 1, "waits": 1}),
    ("acknowledge_ledger", {"topic": 0, "cursor": 0, "entry": 35, "receipt": 1, "waits": 1}),
]
SEEDS_OF_A_SCRIPT = 9

# What matters and is rarely met by walks.
SCRIPTS: dict[str, list[Step]] = {
    "a checkpoint that is due while a clean stop makes the last one": [
        ("append", {"topic": 0, "runs": 2, "size": 40, "count": 1, "waits": 1}),
        ("checkpoint", {"waits": 0, "after": 5}),
        ("restart", {}),
    ],
    "a stop with a full disk, while a checkpoint finds no room": [
        ("append", {"topic": 0, "runs": 2, "size": 40, "count": 1, "waits": 1}),
        ("no_space", {"kept": 0}),
        ("checkpoint", {"waits": 1}),
        ("settle", {"turns": 20}),
        ("restart", {}),
    ],
    "a stop with a full disk, some time after a checkpoint found no room": [
        ("append", {"topic": 0, "runs": 2, "size": 40, "count": 3, "waits": 1}),
        ("no_space", {"kept": 10}),
        ("checkpoint", {"waits": 1}),
        ("time_passes", {"tenths": 1}),
        ("restart", {}),
    ],
    "no room while appends wait for a checkpoint": [
        ("append", {"topic": 0, "runs": 1, "size": 5000, "count": 3, "waits": 1}),
        ("no_space", {"kept": 0}),
        ("append", {"topic": 0, "runs": 4, "size": 100, "count": 8, "waits": 1}),
        ("space_returns", {}),
        ("crash", {"is_power_loss": 1, "again": 0}),
    ],
    "a topic is closed while its next ledger is made": [
        ("append", {"topic": 0, "runs": 4, "size": 5000, "count": 2, "waits": 0}),
        ("close_topic", {"topic": 0}),
        ("look", {}),
        ("open_topic", {"name": 0}),
    ],
    "acknowledged without a receipt while another acknowledgement is on its way": [
        ("disk_is_slow", {"factor": 100}),
        ("acknowledge", {"topic": 0, "cursor": 0, "first": 0, "count": 1, "stride": 1, "receipt": 1, "waits": 0}),
        ("acknowledge", {"topic": 0, "cursor": 0, "first": 2, "count": 1, "stride": 1, "receipt": 0, "waits": 0}),
        ("time_passes", {"tenths": 1}),
        ("look", {}),
        ("crash", {"is_power_loss": 0, "again": 0}),
    ],
    "a cursor is deleted while a checkpoint is made": [
        ("acknowledge", {"topic": 0, "cursor": 0, "first": 2, "count": 1, "stride": 1, "receipt": 1, "waits": 1}),
        ("checkpoint", {"waits": 0, "after": 5}),
        ("delete_cursor", {"topic": 0, "cursor": 0}),
        ("look", {}),
        ("checkpoint", {"waits": 1}),
        ("crash", {"is_power_loss": 1, "again": 0}),
    ],
    "a reset while older acknowledgements are on their way": [
        ("acknowledge", {"topic": 0, "cursor": 0, "first": 0, "count": 1, "stride": 1, "receipt": 1, "waits": 1}),
        ("acknowledge", {"topic": 0, "cursor": 0, "first": 1, "count": 1, "stride": 1, "receipt": 1, "waits": 0}),
        ("acknowledge", {"topic": 0, "cursor": 0, "first": 2, "count": 1, "stride": 1, "receipt": 0, "waits": 0}),
        ("reset", {"topic": 0, "cursor": 0, "entry": -2}),
        ("crash", {"is_power_loss": 1, "again": 0}),
    ],
    "reads while entries are on their way": [
        ("append", {"topic": 0, "runs": 4, "size": 700, "count": 1, "waits": 1}),
        ("read_while_publishing", {"topic": 0, "cursor": 0, "size": 700, "turns": 0}),
        ("checkpoint", {"waits": 1}),
        ("append", {"topic": 0, "runs": 1, "size": 5000, "count": 1, "waits": 1}),
        ("read_while_publishing", {"topic": 0, "cursor": 0, "size": 40, "turns": 2}),
    ],
    "ledgers go from between needed ones, and the process dies meanwhile": [
        *GAP,
        ("crash_soon", {"operations": 0, "is_power_loss": 1, "again": 0}),
        ("trim", {"topic": 0}),
        ("crash_soon", {"operations": 1, "is_power_loss": 1, "again": 0}),
        ("trim", {"topic": 0}),
        ("look", {}),
    ],
    "it cannot be stored that ledgers go from between needed ones": [
        *GAP,
        ("metadata_fails", {"count": 1}),
        ("trim", {"topic": 0}),
        ("acknowledge", {"topic": 0, "cursor": 0, "first": 0, "count": 2, "stride": 1, "receipt": 1, "waits": 1}),
        ("checkpoint", {"waits": 1, "after": 0}),
        ("reset", {"topic": 0, "cursor": 0, "entry": 15}),
        ("crash", {"is_power_loss": 0, "again": 0}),
        ("look", {}),
    ],
    "a cursor goes back to a ledger that is leaving": [
        *GAP,
        ("metadata_fails", {"count": 1}),
        ("trim", {"topic": 0}),
        ("reset", {"topic": 0, "cursor": 0, "entry": 14}),
        ("acknowledge", {"topic": 0, "cursor": 0, "first": 69, "count": 2, "stride": 1, "receipt": 1, "waits": 1}),
        ("read", {"topic": 0, "cursor": 0, "entries": 2, "size": 100_000}),
        ("trim", {"topic": 0}),
        ("read", {"topic": 0, "cursor": 0, "entries": 2, "size": 100_000}),
        ("look", {}),
        ("crash", {"is_power_loss": 0, "again": 0}),
        ("look", {}),
    ],
    "a ledger of which one entry is left stays": [
        *GAP[:-2],
        ("acknowledge", {"topic": 0, "cursor": 0, "first": 12, "count": 8, "stride": 1, "receipt": 1, "waits": 1}),
        ("trim", {"topic": 0}),
        ("look", {}),
    ],
    "cursors go on over a gap": [
        *GAP,
        ("create_cursor", {"topic": 0, "name": 0, "entry": -2, "durable": 0}),
        ("trim", {"topic": 0}),
        ("read", {"topic": 0, "cursor": 0, "entries": 100, "size": 100_000}),
        ("read", {"topic": 0, "cursor": 0, "entries": 100, "size": 100_000}),
        ("read", {"topic": 0, "cursor": 1, "entries": 100, "size": 100_000}),
        ("read", {"topic": 0, "cursor": 1, "entries": 100, "size": 100_000}),
        ("skip", {"topic": 0, "cursor": 0, "entries": 4}),
        ("acknowledge_up_to", {"topic": 0, "cursor": 1, "entry": 14, "receipt": 0, "waits": 0}),
        ("look", {}),
        ("restart", {}),
        ("look", {}),
    ],
}


def draw_script(seed: int, step_count: int) -> list[Step]:
    """A random walk; what it begins with gives what follows something to meet."""
    chance = Random(seed)
    script = [*OPENING, *GAP] if seed % 4 == 0 else list(OPENING)
    names = list(STEPS)
    weights = [STEPS[name][0] for name in names]
    script += [
        (name, {key: chance.choice(values) for key, values in STEPS[name][1].items()})
        for name in chance.choices(names, weights, k=step_count)
    ]
    return script


def run_script(seed: int, script: list[Step]) -> None:
    """Raises whatever does not hold. The same seed and script do the same every time."""
    Steps(seed).play(script)


def failure_of(seed: int, script: list[Step]) -> Exception | None:
    try:
        run_script(seed, script)
    except Exception as error:  # noqa: BLE001 - whatever it is, it shall not be
        return error
    return None


def place_of(error: Exception | None) -> tuple[str, int] | None:
    """Where it was raised: a shorter script must fail for the same reason."""
    if error is None or error.__traceback__ is None:
        return None
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.filename, last.lineno or 0


def shorten(seed: int, script: list[Step], place: tuple[str, int] | None) -> list[Step]:
    """Leave out what is not needed for a failure at `place`: ever smaller pieces, until no single step can go."""
    budget = MAX_RUNS_TO_SHORTEN
    size = max(1, len(script) // 2)
    while size:
        start = 0
        while start < len(script) and budget:
            budget -= 1
            attempt = script[:start] + script[start + size :]
            if place_of(failure_of(seed, attempt)) == place:
                script = attempt
            else:
                start += size
        size //= 2
    return script


def as_text(seed: int, script: list[Step]) -> str:
    lines = [f"    ({name!r}, {arguments!r})," for name, arguments in script]
    return "\n".join([f"run_script({seed}, [", *lines, "])"])


def walk(seed: int, step_count: int) -> None:
    """One script. A failure tells the shortest one that fails as well."""
    script = draw_script(seed, step_count)
    error = failure_of(seed, script)
    if error is not None:
        shortest = shorten(seed, script, place_of(error))
        error = failure_of(seed, shortest) or error
        error.add_note(f"found by walk({seed}, {step_count}); the shortest script:\n{as_text(seed, shortest)}")
        raise error
