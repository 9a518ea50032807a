"""What is measured, and what was: cases, suites, records and statistics. Importing it needs neither torch nor Triton."""
