"""Transaction coordinators: which transactions there are, what takes part in them, how they end, and the log that says so.

Begin at `coordinator_state.py`, the rules; `coordinator.py` performs them on `transaction_log.py`, and `coordinators.py` owns them
all.
What becomes of messages and acknowledgements is up to topics and subscriptions (`broker/transactions/`).
"""
