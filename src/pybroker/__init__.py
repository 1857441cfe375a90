"""A message broker that speaks the Apache Pulsar protocol.

Start reading at `cli` (the command line) and `broker_process` (construction of all parts); `docs/contributing/architecture.md`
shows the layers. Imports point in one direction only, which `tests/unit/test_layering.py` checks.

`embed` and `embed_in_thread` run a broker inside this process. They are imported at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.version import __version__

if TYPE_CHECKING:
    from pybroker.embedding import embed, embed_in_thread

__all__ = ["__version__", "embed", "embed_in_thread"]


def __getattr__(name: str) -> object:
    if name in {"embed", "embed_in_thread"}:
        from pybroker import embedding  # noqa: PLC0415  (a broker's worth of modules, which most need not)

        return getattr(embedding, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
