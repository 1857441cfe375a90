"""A small asyncio client of the binary protocol: what sinks, readers and pipelines speak to any broker with."""
