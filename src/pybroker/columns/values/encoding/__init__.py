"""Writers of columns as payloads, by schema type. Start with `value_encoder.py`."""
