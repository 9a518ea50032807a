"""``rownorm compare``: two sets of records, case by case."""
