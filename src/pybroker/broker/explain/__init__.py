"""Why something waits: from the state of live objects to findings in words. Start with `subscriptions.py`.

Rules only read: they change and keep nothing, and cost nothing unless they are called. Long lists are read in pieces with pauses
for the event loop, so a rule must be correct although objects come and go meanwhile.
"""
