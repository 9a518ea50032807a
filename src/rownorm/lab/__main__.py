"""``python -m rownorm.lab`` is the command ``rownorm``, for a package on the path that is not installed."""

from rownorm_command import main

main()
