"""A message broker that speaks the Apache Pulsar protocol.

Start reading at `cli` (the command line) and `app` (how the parts are put together); `docs/architecture.md` draws the
layers. Inside the package imports point in one direction only, which `tests/unit/test_layering.py` checks.
"""

__version__ = "0.1.0"
