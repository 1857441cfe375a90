"""Rows of entries for tables: typed by the topic's schema, read by whichever way was chosen, in whatever process."""

from __future__ import annotations
