"""The binary protocol's edge: connections, sessions, commands. Start with `connection.py` and `command_table.py`.

What a client may say is in `handlers/`, how large it may be in `handlers/request_limits.py`. What holds a client back, and what
happens to one that does not read, is in `connection.py`; what all connections share and what bounds them together, in `context.py`.
"""
