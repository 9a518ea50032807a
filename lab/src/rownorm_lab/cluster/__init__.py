"""A Ray cluster that takes the jobs of ``bench`` and ``tune``: one process for each GPU."""
