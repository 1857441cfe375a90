"""`explain`: the reasons why messages wait, derived from the state of live objects, as findings in words. Start with
`subscriptions.py`.

Rules only read and cost nothing unless they are called. Long lists are processed in pieces with pauses for the event
loop, so a rule must be correct although objects change meanwhile.
"""
