"""One loaded topic: what it is made of, what it takes, what it keeps, and what it shares with all others (`commons.py`)."""
