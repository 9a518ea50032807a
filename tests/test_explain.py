"""``explain`` gives the plans of a call, and the reasons for them, without running it."""

import re
from pathlib import Path

import pytest
import torch
import triton

import rownorm
from rownorm.explain import explain
from rownorm.launch import Problem, force, plan
from rownorm.launch.planning import files
from rownorm.ops import cpu_native


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device="meta")


def test_plans_for_a_device_that_is_not_here():
    explained = explain(rownorm.rms_norm, meta(8, 128, 4096), meta(4096), device="sm_90")
    assert explained.forward_problem.n_rows == 1024
    assert explained.forward_problem.n_cols == 4096
    assert explained.forward == plan(explained.forward_problem)
    assert explained.backward_problem.n_column_sums == 1
    assert explained.backward_problem.direction == "backward"
    assert "1024 x 4096 bfloat16 on NVIDIA H100/H200 (sm_90)" in str(explained)
    assert str(explained.forward) in str(explained)


@pytest.mark.parametrize(
    ("device", "n_cols", "words"),
    [
        ("sm_90", 8192, ["tuned for 6145 to 8192 columns", "GB/s", "% of the ceiling", "Triton 3"]),
        ("sm_100", 8192, ["fits in the registers of one program"]),
        ("sm_100", 65536, ["a cluster of 4 programs", "programs all over the GPU"]),
        ("gfx942", 65536, ["reloaded in chunks"]),
    ],
)
def test_gives_the_reason_of_each_plan(device, n_cols, words):
    explained = explain(rownorm.rms_norm, meta(4096, n_cols), meta(n_cols), device=device)
    assert explained.forward.reason in str(explained)
    assert explained.backward.reason in str(explained)
    for each in words:
        assert each in str(explained)


def test_says_what_was_second_for_a_plan_of_a_table_only():
    text = str(explain(rownorm.rms_norm, meta(4096, 8192), meta(8192), device="sm_90"))
    seconds = re.findall(r"            second: (\w+): .* tile, .*, \d{4} GB/s", text)
    assert len(seconds) == 2
    assert "second:" not in str(
        explain(rownorm.rms_norm, meta(4096, 8192), meta(8192), device="sm_100")
    )


def test_names_the_experiment_of_a_row_with_an_option():
    x, weight = meta(4096, 8192), meta(8192)
    explained = explain(rownorm.layer_norm, x, weight, weight, activation="gelu", device="sm_90")
    for reason in (explained.forward.reason, explained.backward.reason):
        assert re.search(r"experiment ACT-0\d", reason)


def test_names_the_triton_here_and_that_of_the_table():
    explained = explain(rownorm.rms_norm, meta(4, 256), device="sm_90")
    assert f"  triton    {triton.__version__} compiles the kernels; the table was" in str(explained)
    assert explained.triton.endswith(f"measured with {files.shipped_source('sm_90').triton}")
    without_table = explain(rownorm.rms_norm, meta(4, 256), device="sm_80")
    assert (
        without_table.triton == f"{triton.__version__} compiles the kernels; nothing was measured"
    )


def test_takes_the_arguments_of_every_function():
    x, residual, vector = meta(4, 256), meta(4, 256, dtype=torch.float32), meta(256)
    for function in (rownorm.layer_norm, rownorm.rms_norm):
        explained = explain(function, x, vector, bias=vector, pre_bias=vector, device="gfx942")
        assert explained.backward_problem.n_column_sums == 3
        assert explained.forward_problem.center == (function is rownorm.layer_norm)
    for function in (rownorm.add_layer_norm, rownorm.add_rms_norm):
        explained = explain(function, x, residual, weight=vector, activation="silu", device="sm_80")
        assert explained.forward_problem.residual_dtype == torch.float32


def test_is_the_plan_of_the_call(device, monkeypatch):
    planned = []

    def noting(problem: Problem):
        planned.append((problem, plan(problem)))
        return planned[-1][1]

    monkeypatch.setattr("rownorm.launch.forward.plan", noting)
    monkeypatch.setattr("rownorm.launch.backward.plan", noting)
    x = torch.randn(5, 391, device=device, requires_grad=True)
    weight = torch.randn(391, device=device, requires_grad=True)
    with force(regime="split", block_cols=64, part_cols=128):
        explained = explain(rownorm.rms_norm, x, weight)
        rownorm.rms_norm(x, weight).sum().backward()
    assert planned == [
        (explained.forward_problem, explained.forward),
        (explained.backward_problem, explained.backward),
    ]


def test_contributing_shows_what_it_prints():
    """All but the version of Triton that is installed."""
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    explained = explain(
        rownorm.rms_norm, meta(4096, 8192), meta(8192), activation="gelu", device="sm_90"
    )
    lines = str(explained).splitlines()
    assert all(f"    {line}\n" in text for line in lines if "compiles the kernels" not in line)


def test_refuses_what_it_cannot_plan():
    with pytest.raises(TypeError, match=r"must be one of rownorm\.layer_norm"):
        explain(torch.nn.functional.layer_norm, meta(2, 2))
    with pytest.raises(ValueError, match="sm_90"):
        explain(rownorm.rms_norm, meta(2, 2), device="H200")
    with pytest.raises(ValueError, match="weight must have shape"):
        explain(rownorm.rms_norm, meta(2, 2), meta(3), device="sm_90")
    with pytest.raises(ValueError, match=r"on meta has no plan.* nothing computes it"):
        explain(rownorm.rms_norm, meta(2, 2))


def computed_by(x, options):
    with pytest.raises(ValueError, match="on cpu has no plan") as error:
        explain(rownorm.rms_norm, x, **options)
    assert "pass device='sm_90'" in str(error.value)
    return re.search("kernels: (.*)[.] For the plan", str(error.value))[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the C for a GPU calls the extension itself")
@pytest.mark.usefixtures("without_interpreter")
def test_says_who_computes_on_a_cpu(monkeypatch):
    """The C extension, or PyTorch: whichever the call itself takes."""
    if reason := cpu_native.reason():
        pytest.skip(f"the C extension for a CPU is not in use: {reason}")
    rownorm.rms_norm(torch.ones(1, 8))  # connects the extension
    native, taken = cpu_native.forward, []

    def noting(*arguments):
        results = native(*arguments)
        taken.append(results is not None)
        return results

    monkeypatch.setattr(cpu_native, "forward", noting)
    x = torch.randn(8, 60)
    covered = [{}, {"bias": torch.ones(60)}, {"rounding": "llama"}]
    others = [{"activation": "silu"}, {"gate": torch.ones(8, 60)}, {"rounding": "each"}]
    cases = [(x, one) for one in covered + others]
    cases += [(x.bfloat16(), {}), (x.t().contiguous().t(), {}), (x.double(), {}), (x[:0], {})]
    said = []
    for rows, options in cases:
        said.append(computed_by(rows, options))
        taken.clear()
        rownorm.rms_norm(rows, **options)
        by_extension = "the C extension for a CPU computes it"
        by_pytorch = "PyTorch computes it, because the C extension for a CPU does not cover it"
        assert said[-1] == (by_extension if any(taken) else by_pytorch), options
    assert len(set(said)) == 2


@pytest.mark.usefixtures("without_interpreter")
def test_says_why_the_extension_for_a_cpu_is_not_in_use(monkeypatch):
    monkeypatch.setattr(cpu_native, "_load", lambda: (None, "ROWNORM_NATIVE is 0"))
    words = computed_by(torch.randn(8, 64), {})
    assert words.startswith("PyTorch computes it, because the C extension for a CPU is not in use")
    assert words.endswith("(ROWNORM_NATIVE is 0)")
