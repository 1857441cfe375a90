"""Who publishes to a topic, what is refused, what is stored already, and what the broker adds to entries."""
