"""One REST call: the view of a handler, paths and bodies that many calls share, and refusals.

Start with `call.py`. `routing.py` creates the route of a handler; `existing.py` finds the topic or subscription of the
path. Imports nothing of the other folders.
"""
