"""The server of the binary protocol: connections and commands. Start with `connection.py` and `command_table.py`.

`handlers/` has one function for each command, `handlers/request_limits.py` the size limits of requests. `connection.py` pauses
reading from a client and closes clients that do not read; `server_context.py` has the state and limits of all connections.
"""
