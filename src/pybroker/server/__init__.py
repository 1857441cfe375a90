"""Server of Pulsar's binary protocol.

Start with `connection.py` and `command_table.py`; `handlers/` has one function for each command.
"""
