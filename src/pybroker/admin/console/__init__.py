"""Server side of the web console: its files, and figures that only it needs. Start with `console_routes.py`.

The pages in `pybroker/console/` call the REST API with the user's permissions.
"""
