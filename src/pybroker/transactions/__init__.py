"""Transaction coordinators: the open transactions, their participants, their ends, and the durable log.

Start with `coordinator_state.py`, the rules. `coordinator.py` performs them on `transaction_log.py`, and `coordinators.py` owns all
coordinators. Topics and subscriptions process messages and acknowledgements (`broker/transactions/`).
"""
