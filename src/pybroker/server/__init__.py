"""The binary protocol's edge: sockets, sessions, commands. Start with `connection.py` and `command_table.py`."""
