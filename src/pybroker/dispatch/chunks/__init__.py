"""Chunked messages in Shared and Key_Shared subscriptions: all chunks of a message go to one consumer."""
