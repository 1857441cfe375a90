"""What the broker looks at by itself from time to time, and when an operator asks."""
