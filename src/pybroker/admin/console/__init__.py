"""The broker's part of the web console: its files and figures. Start with `console_routes.py`.

The pages in `pybroker/console/` use REST with the permissions of the user.
"""
