"""``rownorm train``: the models of ``rownorm.models`` on data that is made on the spot."""
