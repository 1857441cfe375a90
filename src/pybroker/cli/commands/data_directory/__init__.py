"""Commands for a broker's stored data: backup, restore, inspection and repair."""
