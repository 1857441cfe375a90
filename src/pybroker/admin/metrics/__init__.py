"""The `/metrics` page, with Pulsar's metric names.

Start with `metrics_page.py` (order of the page), then `topic_and_subscription_metrics.py` (values) and
`exposition_text.py` (text format).
"""
