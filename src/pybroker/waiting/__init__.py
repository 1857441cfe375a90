"""Primitives for requests and tasks that wait: locks by name, fair queues, and rates."""
