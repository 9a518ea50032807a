"""Variants of a user's kernel: copies of its tensors, comparison of results. On a GPU, times."""

import pytest
import torch

from rownorm_lab.compiled import own_timing
from rownorm_lab.compiled.recorded import Launched


class Scale:
    """Stands for a kernel: ``kernel[grid](x=..., y=..., ...)`` writes 2 x, or as much of it as BLOCK covers."""

    params = ()

    def __getitem__(self, grid):
        def launch(x, y, BLOCK, num_warps):
            y[: grid[0] * BLOCK] = 2 * x[: grid[0] * BLOCK] * (1 + (num_warps == 8) * 1e-3)

        return launch


@pytest.fixture
def launched(monkeypatch):
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    x = torch.arange(1, 65.0)
    values = {"x": x, "y": torch.zeros(64), "BLOCK": 16}
    return Launched(Scale(), values, {"num_warps": 4}, (4,))


def test_a_variant_runs_on_copies(launched):
    results = own_timing._results(launched)
    assert torch.equal(results["y"], 2 * launched.values["x"])
    assert not launched.values["y"].any()


def test_a_tensor_that_is_passed_twice_is_copied_once(launched):
    x = launched.values["x"][::2]
    copy = own_timing._copied(launched._replace(values={"x": x, "y": x, "BLOCK": 16}))
    assert copy.values["x"] is copy.values["y"]
    assert copy.values["x"].stride() == x.stride()
    assert torch.equal(copy.values["x"], x)


def test_other_results_are_noticed(launched):
    expected = own_timing._results(launched)
    same = own_timing._results(launched.with_values({"BLOCK": 32}))
    assert own_timing._difference(same, expected) == ""
    for others in ({"BLOCK": 8}, {"num_warps": 8}):
        results = own_timing._results(launched.with_values(others))
        assert own_timing._difference(results, expected) == "y differs from the recorded launch's"


def test_not_a_number_and_integers(launched):
    nan = torch.tensor([torch.nan, 1.0])
    assert own_timing._difference({"y": nan.clone()}, {"y": nan}) == ""
    assert own_timing._difference({"y": torch.tensor([1, 2])}, {"y": torch.tensor([1, 3])})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="times a kernel: needs a GPU")
def test_times_on_a_gpu():
    from pathlib import Path

    from rownorm_lab.data.user_files import source_of

    example = Path(__file__).parents[3] / "examples" / "own_kernel.py"
    real = own_timing.launched_here(source_of(f"{example}:rms_norm_kernel"), None, 1)
    variants = [real.with_values({"BLOCK": block}) for block in (256, 1024, 3)]
    first, second, wrong = own_timing.time_variants(real, variants)
    assert 0 < first.seconds < 1e-2
    assert 0 < second.seconds < 1e-2
    assert wrong.seconds is None
    assert wrong.why
