"""`.../explain`: the findings of `broker/explain` over REST. Begin at `explain_routes.py`."""
