"""Commands for a cluster: its brokers, and the metadata that they share. `metadata` calls no broker."""
