"""Commands about what the brokers of a cluster share. They call no broker."""
