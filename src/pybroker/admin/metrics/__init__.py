"""The `/metrics` page, with Pulsar's metric names.

Start with `metrics_page.py` (order of the page), then `topic_and_subscription_metrics.py` (values) and
`exposition_text.py` (text format). Each metric has one `# HELP` and one `# TYPE` line, and `cluster` is the first label
of every sample. The Prometheus client library is not used for topics, because it takes 13 µs per row.
"""
