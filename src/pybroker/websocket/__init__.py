"""Pulsar's WebSocket API on the web port: producers, consumers and readers whose frames are JSON texts.

Start with `websocket_routes.py`, which opens sessions, and `websocket_service.py`, which owns them. A session is one
`WebSocketConnection` (frames) and one `ProducerSession` or `ConsumerSession` (JSON), which uses the project's own client:
the topic may belong to any broker of the cluster.
"""
