"""``rownorm tune``: find the fastest launch settings for each width, and write the table that plans come from."""
