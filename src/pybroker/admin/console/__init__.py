"""The web console's side in the broker: its files, and what it shows that no other call has. Begin with `console_routes.py`.

The pages themselves are in `pybroker/console/`; all that they show and do goes through REST, with the rights of who looks.
"""
