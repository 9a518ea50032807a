"""What a learner's function asks of PyTorch: memory, or arithmetic."""

import pytest
import torch

from rownorm_course import observe
from rownorm_course.observe import observed

ALLOCATING = {
    "empty": lambda x: torch.empty(3, 4),
    "empty_permuted": lambda x: torch.empty_permuted((3, 4), (1, 0)),
    "empty_like": torch.empty_like,
    "new_empty": lambda x: x.new_empty(3, 4),
    "zeros": lambda x: torch.zeros(3, 4),
    "zeros_like": torch.zeros_like,
    "new_zeros": lambda x: x.new_zeros(3, 4),
    "ones": lambda x: torch.ones(3, 4),
    "ones_like": torch.ones_like,
    "new_ones": lambda x: x.new_ones(3, 4),
    "full": lambda x: torch.full((3, 4), 2.0),
    "full_like": lambda x: torch.full_like(x, 2.0),
    "new_full": lambda x: x.new_full((3, 4), 2.0),
    "scalar_tensor": lambda x: torch.scalar_tensor(2.0),
}


@pytest.fixture(autouse=True)
def threads_of_other_tests(monkeypatch):
    """They are not the learner's."""
    monkeypatch.setattr(observe, "THREADS", observe.threads())


@pytest.mark.parametrize("name", ALLOCATING)
def test_allocating_is_no_arithmetic(name):
    x = torch.ones(3, 4)
    with observed() as seen:
        made = ALLOCATING[name](x)
    assert seen.operators == []
    assert seen.created == [made.numel()]
    assert bool(made.isnan().any()) == ("empty" in name)  # memory without contents is NaN


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("add", lambda x: x.new_ones(3, 4) + x),
        ("arange", lambda x: torch.arange(4)),
        ("mean", torch.mean),
    ],
)
def test_arithmetic_is_seen(name, function):
    with observed() as seen:
        function(torch.ones(3, 4))
    assert seen.operators == [name]
