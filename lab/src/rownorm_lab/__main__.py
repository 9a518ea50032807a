"""``python -m rownorm_lab`` is the command ``rownorm``, for a package on the path that is not installed."""

from .main import main

main()
