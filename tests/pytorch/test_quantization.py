"""Eager quantization (``torch.ao``) takes ``rownorm.nn.LayerNorm`` as it takes torch's. On CPUs only, as torch's."""

import pytest
import torch
from torch import nn

import rownorm

quantization = pytest.importorskip("torch.ao.quantization", reason="this torch has no torch.ao")
pytestmark = [
    # It is deprecated, and each version of torch says so in other words.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("without_interpreter", "any_algorithm"),
]


@pytest.fixture
def any_algorithm(poisoned_memory):
    """torch's quantized modules have no deterministic implementation, which the fixture of all tests asks for."""
    torch.use_deterministic_algorithms(False)


def patched(norm):
    rownorm.patch(norm)
    return norm


NORMS = {
    "torch": lambda: nn.LayerNorm(8),
    "rownorm": lambda: rownorm.nn.LayerNorm(8),
    "patched": lambda: patched(nn.LayerNorm(8)),
}
ours = pytest.mark.parametrize("name", ["rownorm", "patched"])


def model_of(norm, qconfig):
    torch.manual_seed(0)
    stubs = quantization.QuantStub(), quantization.DeQuantStub()
    model = nn.Sequential(stubs[0], nn.Linear(8, 8), norm, nn.Linear(8, 8), stubs[1])
    model.qconfig = qconfig
    return model


def converted(name):
    """The quantized model after static quantization."""
    model = model_of(NORMS[name](), quantization.default_qconfig).eval()
    prepared = quantization.prepare(model)
    prepared(torch.linspace(-2, 2, 32).view(4, 8))
    return quantization.convert(prepared)


def converted_after_training(name):
    """The quantized model after training that simulates quantization."""
    model = model_of(NORMS[name](), quantization.default_qat_qconfig).train()
    prepared = quantization.prepare_qat(model)
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        prepared(torch.linspace(-2, 2, 32).view(4, 8)).square().mean().backward()
        optimizer.step()
    return quantization.convert(prepared.eval())


@ours
@pytest.mark.parametrize("quantized", [converted, converted_after_training])
def test_same_as_with_torchs_norm(name, quantized):
    mine, torchs = quantized(name), quantized("torch")
    assert type(mine[2]) is type(torchs[2]) is torch.ao.nn.quantized.LayerNorm
    x = torch.linspace(-1, 2, 24).view(3, 8)
    step = torchs[3].scale  # of the results; a rounding before it may go the other way
    torch.testing.assert_close(mine(x), torchs(x), rtol=0, atol=1.001 * step)


@ours
def test_dynamic_quantization_keeps_the_norm(name):
    model = nn.Sequential(nn.Linear(8, 8), NORMS[name]())
    quantized = quantization.quantize_dynamic(model, {nn.Linear})
    assert type(quantized[1]) is type(model[1])
    assert quantized(torch.randn(3, 8)).isfinite().all()


def test_quantized_rows_say_what_to_do():
    """torch's RMSNorm does not take them either, and torch.ao has no counterpart of it."""
    rows = torch.quantize_per_tensor(torch.randn(2, 8), 0.1, 0, torch.qint8)
    with pytest.raises(TypeError, match=r"got torch\.qint8\. Convert it with \.dequantize\(\)"):
        rownorm.nn.RMSNorm(8)(rows)
