"""What each exercise checks: one file for each, with a list ``TASKS``."""
