"""`explain`: reports why messages wait, as findings in plain language, derived from the current state of the broker.

Start with `subscriptions.py`. The rules only read, and cost nothing unless they are called. Rules process long lists in
slices and yield to the event loop in between, so a rule must be correct although the state changes meanwhile.
"""
