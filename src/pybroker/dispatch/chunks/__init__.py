"""Chunked messages of shared subscriptions: all chunks of a message go to one consumer."""
