"""``rownorm learn``: exercises that are graded by the lab's own oracle, cases and analysis."""
