"""Routes that inspect a subscription: requests and answers. `broker/inspection/` computes the results."""
