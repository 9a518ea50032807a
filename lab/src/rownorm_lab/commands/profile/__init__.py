"""``rownorm profile``: a norm, a model or a script under the profilers that are here; one summary."""
