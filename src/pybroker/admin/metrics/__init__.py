"""The `/metrics` page, with Pulsar's metric names.

Invariants: each metric has one `# HELP` and one `# TYPE` line followed by all its samples. `cluster` is the first label
of every sample. The page is written in time slices. Topic and subscription rows are formatted without the client
library, which needs 13 µs per row, too much for 10,000 topics.

Start with `metrics_page.py` (the page's order), then `topic_and_subscription_metrics.py` (the values of topics and their
clients) and `exposition_text.py` (the format).
"""
