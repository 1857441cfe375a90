"""Load of brokers and bundles, and the leader's rules: choice of a broker, shedding. Start with `load_report.py`."""
