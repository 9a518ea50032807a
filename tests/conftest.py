"""What every test shares: the device, a fixed seed, and memory that is NaN until something is
written to it."""

import os

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    # Read by triton when it is imported, so it comes before anything of rownorm.
    os.environ.setdefault("TRITON_INTERPRET", "1")
# A deterministic matrix product on a GPU asks for this before the first one.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
torch.set_num_threads(1)  # tensors are small, and pytest-xdist has the other cores


@pytest.fixture(scope="session")
def device() -> str:
    """Where the kernels run: a GPU, or the CPU in Triton's interpreter."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def without_interpreter(monkeypatch) -> None:
    """Tensors on a CPU take PyTorch, as they do for a user; nothing is remembered from before."""
    from rownorm.ops import execute

    monkeypatch.setattr(execute, "INTERPRETING", False)
    monkeypatch.setattr(execute, "_forward_calls", {})
    monkeypatch.setattr(execute, "_backward_calls", {})


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(20)


@pytest.fixture(autouse=True)
def poisoned_memory():
    """``torch.empty`` gives NaN, as it does in torch's deterministic mode: what is not written
    shows."""
    before = torch.are_deterministic_algorithms_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.utils.deterministic.fill_uninitialized_memory = filled
    torch.use_deterministic_algorithms(before)


@pytest.fixture(scope="session", autouse=True)
def fused_multiply_add():
    """Rounded once, as by a GPU. Triton's interpreter rounds the product, too, which PyTorch's own sums do not."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def create_fma(_, x, y, z):
        total = x.data.astype(np.float64) * y.data + z.data
        return TensorHandle(total.astype(z.data.dtype), z.dtype.scalar)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_fma", create_fma)
        yield


@pytest.fixture(autouse=True)
def silent_overflow():
    """Kernels overflow and divide by zero without a word on a GPU; numpy, which interprets them,
    would warn."""
    with np.errstate(all="ignore"):
        yield
