"""`explain`: reports why messages wait, as findings in plain language, derived from the current state of the broker.

Start with `subscriptions.py`. The rules only read. They yield while they process long lists, so a rule must be correct
although the state changes meanwhile.
"""
