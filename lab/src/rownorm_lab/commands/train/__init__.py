"""``rownorm train``: a small model on data that is made on the spot."""
