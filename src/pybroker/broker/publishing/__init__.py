"""Producers of a topic: registration, access modes, deduplication, and checks of published messages.

Start with `producer_registry.py`.
"""
