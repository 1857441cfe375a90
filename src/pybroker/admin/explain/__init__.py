"""REST routes of `explain`, which reports why messages wait. Start with `explain_routes.py`."""
