"""The Solution."""

from pathlib import Path

from flashinfer_bench import BuildSpec, Solution, SourceFile, SupportedLanguages

KERNEL = "triton_rmsnorm.py"


def make_solution():
    """A flashinfer_bench.Solution with triton_rmsnorm.py inside."""
    return Solution(
        name="learner_rmsnorm_d4096",
        definition="rmsnorm_d4096",
        author="learner",
        description="One program for each row, the row in registers.",
        spec=BuildSpec(
            language=SupportedLanguages.TRITON,
            target_hardware=["cuda"],
            entry_point=f"{KERNEL}::run",
            destination_passing_style=True,
        ),
        sources=[SourceFile(path=KERNEL, content=Path(__file__).with_name(KERNEL).read_text())],
    )


if __name__ == "__main__":
    print(make_solution().model_dump_json(indent=1))
