"""Statistics: what topics, bundles and the broker do, as JSON, and the rates that are sampled for it.

Start with `rate_sampler.py` (where rates come from) and `topic_stats.py` (the document of a topic). The page of metrics, which is
made of the same, is in `metrics/`.
"""
