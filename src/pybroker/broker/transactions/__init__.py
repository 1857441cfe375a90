"""Transactions at topics: which messages nobody may see yet or ever, and which acknowledgements wait for an end."""
