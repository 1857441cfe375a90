"""Caches of entries: recently appended entries, and entries that were read recently."""
