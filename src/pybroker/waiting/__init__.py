"""Primitives for requests and tasks that wait: locks by name, fair queues, shares of limited resources, and rates."""
