"""Commands about what the brokers of a cluster share. `metadata` calls no broker."""
