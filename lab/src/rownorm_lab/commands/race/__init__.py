"""``rownorm race``: who reads and writes what, without a GPU."""
