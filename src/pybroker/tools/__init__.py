"""What looks at a data directory while no broker runs on it: `verify.py` for damage, `dump.py` for people's eyes.

What must always hold: nothing on disk is changed, whatever state a crash left it in. Start reading at `data_files.py`.
"""
