"""The differential harness: the same scripted scenarios against pybroker and against the reference broker.

Each scenario leaves a trace on each broker; the traces must be equal but for what `normalise.py` takes out and for the
intended differences that `intended.py` lists with their reasons. Nothing here is collected by pytest, since it needs
Java: start reading in `run.py`.
"""
