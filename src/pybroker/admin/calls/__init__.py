"""One call of the REST interface: what a handler gets, the words of paths and bodies that many share, and what a call refuses.

Start with `call.py`; `routing.py` makes a route of a handler, `existing.py` finds the topic or subscription that the path names
and acts on it, partition by partition where it has any. Imports nothing of the other folders.
"""
