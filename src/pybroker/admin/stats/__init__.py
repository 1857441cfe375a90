"""Statistics of topics, bundles, and the broker as JSON, and the sampled rates for them.

Start with `rate_sampler.py` (the rates) and `topic_stats.py` (the document of a topic).
"""
