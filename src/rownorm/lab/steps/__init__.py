"""``rownorm steps``: what rownorm is worth in a training step as people write it."""
