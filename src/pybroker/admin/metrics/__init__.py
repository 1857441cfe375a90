"""The `/metrics` page, with Pulsar's metric names.

Invariants: each metric has one `# HELP` and one `# TYPE` line, followed by all its samples. `cluster` is the first
label of every sample. The page is written in time slices. Rows of topics and subscriptions are formatted without the
Prometheus client library, which takes 13 µs per row, too long for 10,000 topics.

Start with `metrics_page.py` (order of the page), then `topic_and_subscription_metrics.py` (values of topics and their
clients) and `exposition_text.py` (text format).
"""
