"""Inspection of ledgers without changing them: the copies of each entry (`copies.py`), and orphaned ledgers
(`orphan_rule.py`)."""
