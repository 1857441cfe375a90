"""The `/metrics` page: Pulsar's names over our counters, read at scrape time.

What must always hold: one `# TYPE` line for each metric with all its samples behind it, `cluster` as the first label of
every sample, and no more than one slice of work between two times that the loop may turn to others. Rows of topics and
subscriptions are written by hand: the client library needs some 13 µs a row, which a broker with 10,000 topics has not.

Start reading in `page.py` (the order of things), then `values.py` (what is read of a topic) and `text.py` (the format).
"""
