"""Delta tables as targets of a pipeline. Start with `delta_table.py`."""
