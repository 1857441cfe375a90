"""The load of brokers and bundles, and the leader's rules: which broker gets a bundle, and which bundles move
(shedding). Start with `load_report.py`.
"""
