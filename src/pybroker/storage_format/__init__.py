"""Byte layouts of all files of the local store, as described in `docs/reference/storage-format.md`. Pure."""
