"""Clients, administrators and nature of a simulated run: they do what a script says. Start reading at `client.py`."""
