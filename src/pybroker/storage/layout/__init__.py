"""Byte layouts of everything the local store writes: `journal.py` (journal files) and `segment.py` (ledger files).

Pure: bytes in, values out. What must always hold: every layout carries a magic and a version, every byte that matters is
under a CRC32C, and decoders refuse what they do not know instead of guessing. All numbers are little-endian.
`docs/storage-format.md` tells the same for readers of the files. Files, their order and their life belong to the callers.
"""
