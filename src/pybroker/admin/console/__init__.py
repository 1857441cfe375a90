"""Server side of the web console: files and figures. Start with `console_routes.py`.

The pages in `pybroker/console/` call the REST API with the user's permissions.
"""
