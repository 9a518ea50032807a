"""What is measured: cases, named suites of cases, and the tensors of a case."""
