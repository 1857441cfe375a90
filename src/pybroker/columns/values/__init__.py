"""Payloads as typed columns and back, by the schema of the topic."""
