"""Comparisons of a study, and its tables."""

import pytest

from rownorm_lab.data.records import Environment
from rownorm_lab.data.studies import (
    KernelTime,
    StageRecord,
    Study,
    comparisons,
    is_measured,
    read_study,
    write_study,
)
from rownorm_lab.data.study_tables import (
    comparison_table,
    kernel_table,
    kernel_tables,
    step_tables,
)

TURNS = [1.0, 1.2, 0.9, 1.1, 1.0, 1.3, 1.0, 0.95]  # the same disturbance for all stages of a turn


def record(stage, factor, peak=None, setting="eager", run="one", **fields):
    step = [factor * turn * 1e-3 for turn in TURNS]
    thirds = [seconds / 3 for seconds in step]
    values = {"forward": thirds, "backward": thirds, "step": step, "host": thirds}
    return StageRecord(
        stage=stage, setting=setting, precision="bf16", peak_bytes=peak, run=run, **values, **fields
    )


def study(*records):
    return Study(
        task="llama",
        size="tiny",
        steps=8,
        parameters=10**6,
        units=1000,
        unit="tokens",
        environment=Environment(device="A GPU", kind="cuda", torch="2", triton="3"),
        records=list(records),
    )


def test_ratios_are_paired_and_know_the_noise():
    """Turns differ by 40%, stages by 5% in every turn."""
    one = study(
        record("baseline", 2.0, 400), record("fused", 1.05, 200), record("rownorm", 1.0, 190)
    )
    beside_baseline, beside_fused = comparisons(one)
    assert (beside_baseline.other, beside_baseline.verdict) == ("baseline", "faster")
    assert beside_fused.time.ratio == pytest.approx(1 / 1.05)
    assert (beside_fused.verdict, beside_fused.memory) == ("faster", 0.95)
    level = study(record("fused", 1.0), record("rownorm", 1.005))
    assert [(c.verdict, c.memory) for c in comparisons(level)] == [("same", None)]
    slower = study(record("fused", 1.0), record("rownorm", 1.05))
    assert [c.verdict for c in comparisons(slower)] == ["slower"]


def test_only_stages_of_the_same_turns_are_compared():
    assert not comparisons(study(record("fused", 1.0, run="other"), record("rownorm", 1.0)))
    assert not comparisons(study(record("fused", 1.0, setting="autocast"), record("rownorm", 1.0)))
    assert not comparisons(study(record("fused", 1.0, status="wrong"), record("rownorm", 1.0)))
    both = study(record("fused", 1.0, run="other"), record("rownorm", 1.0))
    assert not is_measured(both, "eager", ["fused", "rownorm"])
    assert is_measured(both, "eager", ["fused"])
    assert not is_measured(both, "compiled", ["fused"])


def test_tables():
    kernels = [KernelTime("gemm", 4, 6e-4, False), KernelTime("norm", 2, 2e-4, True)]
    ours = record("rownorm", 1.0, 10**9, kernels=kernels, attribution="ranges")
    one = study(record("fused", 2.0, 2 * 10**9), ours)
    (steps,) = step_tables(one)
    assert steps.title == "eager, bf16"
    line = dict(zip(steps.header, steps.lines[1], strict=True))
    assert (line["step"], line["tokens/s"]) == ("1.00 ms", "1,000,000")
    assert (line["peak memory"], line["norms"]) == ("1.00 GB", "25%")
    assert steps.lines[0][-1] == "unknown"
    (compared,) = comparison_table(one).lines
    assert compared == ["eager", "fused", "2.00x (2.00 to 2.00)", "faster", "0.500"]
    (table,) = kernel_tables(one, 1)
    assert table.lines == [["gemm", "4", "600 µs", "75%", ""]]
    assert "800 µs" in table.title


def test_a_study_is_read_as_it_was_written(tmp_path):
    one = study(record("fused", 1.0), record("rownorm", 1.0))
    assert read_study(write_study(tmp_path, one)) == one
    replaced = one.with_record(record("fused", 3.0))
    assert [r.stage for r in replaced.records] == ["rownorm", "fused"]
    file = tmp_path / "study-llama.json"
    file.write_text(file.read_text().replace('"schema": 1', '"schema": 2'))
    with pytest.raises(ValueError, match="cannot be read as a study"):
        read_study(file)


def test_a_name_of_thousands_of_characters_does_not_widen_the_table():
    name = (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<" + "float, " * 700 + "4>>()"
    )
    table = kernel_table("script", [KernelTime(name, 1, 1e-6, False)], 5)
    assert table.lines[0][0].startswith("void at::native::reduce_kernel<512")
    assert len(table.lines[0][0]) == 100
