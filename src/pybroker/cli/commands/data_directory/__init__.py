"""Commands on the stored data of a broker: backup, restore, and the inspection and repair of a data directory."""
