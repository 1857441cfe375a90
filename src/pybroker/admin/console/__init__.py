"""The web console's part in the broker: its files, and figures that no other call has. Start with `console_routes.py`.

The pages are in `pybroker/console/`; they use REST for everything, with the permissions of the user.
"""
