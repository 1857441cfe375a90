"""SASL mechanisms of clients, without IO: for ZooKeeper and BookKeeper."""
