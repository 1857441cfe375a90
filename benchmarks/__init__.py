"""The load generator: raw, pre-encoded protocol frames against any Pulsar-protocol broker, ours or a reference.

Invariant: the generator costs less CPU per message than the broker it loads, so that the figures are the broker's.
Start reading in `bench.py` (the command), then `cases.py`, `load.py` (the drivers) and `frames.py` (the bytes).
"""
