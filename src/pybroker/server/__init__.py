"""The server of the binary protocol: connections and commands. Start with `connection.py` and `command_table.py`;
`handlers/` has one function for each command.
"""
