"""Byte layouts of all files of the local store (`docs/reference/storage-format.md`). Pure."""
