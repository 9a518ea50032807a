"""``python -m rownorm.lab`` is ``rownorm``, for where the package is on the path but not installed."""

from rownorm_command import main

main()
