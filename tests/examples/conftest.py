"""The suites here are what users write: they run in a pytest of their own, by `test_example_projects.py`."""

collect_ignore = ["orders"]
