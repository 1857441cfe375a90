"""The reading side of the data source `pulsar`: options, offsets, plans, tasks, and streams. Start with `query_planning.py`."""
