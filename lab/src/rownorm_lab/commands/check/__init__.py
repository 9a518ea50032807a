"""``rownorm check``: the accuracy of every provider against fp64."""
