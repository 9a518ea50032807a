"""The Solution."""

from pathlib import Path

from flashinfer_bench import BuildSpec, Solution, SourceFile, SupportedLanguages


def make_solution():
    """A flashinfer_bench.Solution with triton_rmsnorm.py inside."""
    raise NotImplementedError("make_solution")


if __name__ == "__main__":
    print(make_solution().model_dump_json(indent=1))
