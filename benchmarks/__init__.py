"""The load generator: sends pre-encoded frames to any broker with the Pulsar protocol.

Invariant: the generator uses less CPU per message than the broker, so the figures show the broker's speed. Start with
`bench.py` (the command), then `cases.py`, `load.py` (the drivers) and `frames.py` (the bytes).
"""
