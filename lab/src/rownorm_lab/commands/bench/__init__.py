"""``rownorm bench``: measure cases and write a run folder."""
