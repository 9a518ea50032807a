"""``rownorm fib``: export, check, run, report, apply."""
