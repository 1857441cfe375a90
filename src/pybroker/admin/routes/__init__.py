"""One module for each noun of the REST API; each has `routes()`, and `http.all_routes` joins them.

A handler takes its names from the call, asks for the right, calls one method of the broker and shapes the answer.
"""
