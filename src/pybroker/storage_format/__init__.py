"""Byte layouts of all files of the local store. `docs/storage-format.md` describes them. Pure."""
