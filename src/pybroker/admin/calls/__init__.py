"""One call of the REST interface: the view of a handler, paths and bodies that many calls share, and refusals.

Start with `call.py`. `routing.py` creates a route of a handler, and `existing.py` finds the topic or subscription of the path and
acts on it, partition by partition for a partitioned topic. Imports nothing of the other folders.
"""
