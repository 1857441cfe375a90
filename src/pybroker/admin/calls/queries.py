"""The query parameters of a route, only for its documentation."""

from __future__ import annotations

from typing import NamedTuple


class Query(NamedTuple):
    """One parameter; the type is `str`, `int` (of 64 bits) or `bool` (`true`, else `false`)."""

    name: str
    text: str
    type: type[str] | type[int] | type[bool] = str
    default: str | int | bool | None = None
    values: tuple[str, ...] = ()
    """The only permitted ones."""
    is_required: bool = False


FORCE = Query("force", "also what is in use, or not empty", bool)
APPLIED = Query("applied", "what is in force, wherever it comes from", bool)
WITH_SYSTEM_TOPICS = Query("includeSystemTopic", "also topics of the broker's own", bool)
WITH_METADATA = Query("metadata", "more of each ledger", bool)
WITH_LOW_WATER_MARKS = Query("lowWaterMarks", "also the low-water marks of coordinators", bool)
BATCH_INDEX = Query("batchIndex", "one message of the batch that the entry is; from 0", int)
