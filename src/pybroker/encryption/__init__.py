"""End-to-end encryption of messages in the format of Pulsar's clients.

Start with `payload_encryption.py` (payloads and data keys); `ecies.py` encrypts data keys with EC keys. `crypto_key_reader.py`
is the interface with which users bring their keys, and `key_directory.py` reads the keys from files.
"""
