"""The ways to read entries: binary protocol, bulk HTTP endpoint, and segment files on the same host."""
