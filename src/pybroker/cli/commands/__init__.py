"""One module for each command of `pybroker`; `cli/command_table.py` lists them."""
