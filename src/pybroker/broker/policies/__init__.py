"""Policies, settings and rights that change while the broker runs: which hold by default, and who is told."""
