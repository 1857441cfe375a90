"""The environment of a broker: clock, timers, threads, tasks, network, and logs. Start with `runtime.py`."""
