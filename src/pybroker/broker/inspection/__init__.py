"""Looking at a subscription closely: what is unacknowledged, draining, acknowledged behind, delayed.

Looking changes nothing and costs nothing when nobody asks. What may be long is a generator that pauses after each piece of
work, so that whoever drives it lets others run; entries are read page by page, once the caller has memory for them. Begin at
`unacked.py`.
"""
