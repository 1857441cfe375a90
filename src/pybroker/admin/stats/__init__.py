"""Statistics of topics, bundles and the broker as JSON, and sampled rates.

Start with `rate_sampler.py` (rates) and `topic_stats.py` (statistics of a topic).
"""
