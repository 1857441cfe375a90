"""The writing side of the data source `pulsar`: options, rows, and delivery guarantees. Start with `sink.py`."""
