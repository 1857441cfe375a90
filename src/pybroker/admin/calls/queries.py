"""Descriptions of query parameters, used only for the OpenAPI document."""

from __future__ import annotations

from typing import NamedTuple


class Query(NamedTuple):
    """One query parameter. The type is `str`, `int` (64 bits), or `bool` (`true`; any other text is false)."""

    name: str
    text: str
    type: type[str] | type[int] | type[bool] = str
    default: str | int | bool | None = None
    values: tuple[str, ...] = ()
    """The permitted values, if limited."""
    is_required: bool = False


FORCE = Query("force", "delete it even if it is in use or not empty", bool)
APPLIED = Query("applied", "return the effective value, from any level", bool)
WITH_SYSTEM_TOPICS = Query("includeSystemTopic", "include system topics", bool)
WITH_METADATA = Query("metadata", "include the metadata of each ledger", bool)
WITH_LOW_WATER_MARKS = Query("lowWaterMarks", "include the low-water marks of coordinators", bool)
BATCH_INDEX = Query("batchIndex", "index of one message in the entry's batch, from 0", int)
