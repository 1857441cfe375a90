"""Columns to payloads: the writers of each schema type. Start with `value_encoder.py`."""
