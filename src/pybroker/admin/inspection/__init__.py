"""REST routes that inspect a subscription. `broker/inspection/` computes the results."""
