"""Transports for reading entries: binary protocol, bulk HTTP endpoint, and segment files on the same host."""
