"""The report: a page, plots and an analysis from records and nothing else."""
