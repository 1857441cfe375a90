"""The `/metrics` page: Pulsar's names over our counters, read at scrape time.

Invariants: each metric has one `# HELP` and one `# TYPE` line with all its samples behind them. `cluster` is the first
label of every sample. The page is written in slices, and the event loop runs other tasks after each slice. Rows of
topics and subscriptions are formatted directly, because the client library needs 13 µs a row, too much for 10,000
topics.

Start with `metrics_page.py` (the order of the page), then `topic_and_subscription_metrics.py` (the
values of topics, subscriptions, consumers, and producers) and
`exposition_text.py` (the format).
"""
