"""Why something waits: from the state of live objects to findings in words.

Rules only look: they change nothing, keep nothing, and are asked only when somebody wants to know, so that they cost nothing
otherwise. What there may be much of is looked at piece by piece, with pauses in which the loop turns to others; so a rule must
be right whatever comes and goes meanwhile. Begin at `subscription.py`.
"""
