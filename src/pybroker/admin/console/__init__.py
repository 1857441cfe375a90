"""The server side of the web console: files and figures. Start with `console_routes.py`.

The pages in `pybroker/console/` call REST with the user's permissions.
"""
