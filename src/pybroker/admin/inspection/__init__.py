"""Routes that look closely at a subscription: what is asked and answered. What they show is made in `broker/inspection/`."""
