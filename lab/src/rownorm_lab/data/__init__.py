"""Cases, suites, records, statistics, and tables of them. Importing it needs neither torch nor Triton."""
