"""`.../explain`: findings of `broker/explain` over REST. Start with `explain_routes.py`."""
