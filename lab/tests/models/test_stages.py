"""The three stages of all models: one parameter layout, the same numbers, a gradient for every parameter."""

import pytest
import torch

import rownorm
from lab_support.models import DIT, LLAMA, MODELS, OPENFOLD, inputs, make, step
from rownorm_lab.models import STAGES
from support.known_warnings import IGNORE_ONEDNN

every_model = pytest.mark.parametrize("name", list(MODELS))
every_stage = pytest.mark.parametrize("stage", STAGES)
EXHAUSTIVE = pytest.mark.exhaustive


@every_model
def test_a_state_dict_loads_in_every_stage(name, without_interpreter):
    saved = make(name, "rownorm", torch.float64)
    expected = saved(inputs(name))
    for stage in STAGES:
        other = make(name, stage, torch.float64, seed=7)
        assert not torch.allclose(other(inputs(name)), expected)
        other.load_state_dict(saved.state_dict())  # strict: the same keys and shapes
        torch.testing.assert_close(other(inputs(name)), expected, rtol=1e-12, atol=1e-12)


@every_model
@every_stage
def test_every_parameter_gets_a_gradient(name, stage, without_interpreter):
    model = make(name, stage, torch.float64)
    got = step(model, inputs(name)).gradients
    # Rounding alone gives less than 1e-12: such a parameter has no effect on the result.
    without = [n for n, _ in model.named_parameters() if n not in got or got[n].norm() < 1e-9]
    assert without == []


@every_model
def test_stages_agree_in_fp64(name, without_interpreter):
    baseline, *others = (step(make(name, s, torch.float64), inputs(name)) for s in STAGES)
    for other in others:
        assert other.relative_error(baseline) < 1e-13


@every_model
def test_kernels_agree_with_the_baseline(name, device):
    """Through the Triton kernels, in the interpreter where there is no GPU."""
    baseline = step(make(name, "baseline", device=device), inputs(name, device))
    ours = step(make(name, "rownorm", device=device), inputs(name, device))
    assert ours.relative_error(baseline) < 2e-5


@IGNORE_ONEDNN
@every_model
@pytest.mark.parametrize("amp", (False, True), ids=("bf16", "autocast"))
def test_bf16_is_as_exact_as_torchs_stages(name, amp, device, without_interpreter):
    exact = step(make(name, "baseline", torch.float64, device), inputs(name, device))
    dtype = torch.float32 if amp else torch.bfloat16
    error = {}
    for stage in STAGES:
        got = step(make(name, stage, dtype, device), inputs(name, device), amp)
        error[stage] = got.relative_error(exact)
    assert error["rownorm"] > 1e-4  # it is bf16
    assert error["rownorm"] < 1.25 * max(error["baseline"], error["fused"])


@pytest.mark.parametrize(
    ("name", "norm", "n_adds", "n_alone"),
    [
        # A layer has two norms; only the very first has nothing to add.
        ("llama", "rms_norm", 2 * LLAMA.n_layers, 1),
        # A block has 4 norms of the MSA, the first without an update, 6 of the pair stream and 2 inside products.
        ("openfold", "layer_norm", 9 * OPENFOLD.n_blocks, 3 * OPENFOLD.n_blocks + 1),
        # As in llama: with the gate of the update, scale and shift.
        ("dit", "layer_norm", 2 * DIT.n_layers, 1),
    ],
)
def test_residual_adds_are_fused(name, norm, n_adds, n_alone, monkeypatch, without_interpreter):
    calls = []
    for function in (norm, f"add_{norm}"):
        original = getattr(rownorm, function)
        monkeypatch.setattr(
            rownorm,
            function,
            lambda *a, f=original, n=function, **k: (calls.append(n), f(*a, **k))[1],
        )
    make(name, "rownorm")(inputs(name))
    # The last norm, before the head, adds too.
    assert (calls.count(f"add_{norm}"), calls.count(norm)) == (n_adds, n_alone)


@IGNORE_ONEDNN
@every_model
def test_norms_under_autocast_store_what_linear_layers_read(name, device, without_interpreter):
    model, dtypes = make(name, "rownorm", device=device), []
    for path, module in model.named_modules():
        # A modulation reads one row of each sample, which is no result of a norm.
        if isinstance(module, torch.nn.Linear) and not path.endswith("modulation"):
            module.register_forward_pre_hook(lambda _, args: dtypes.append(args[0].dtype))
    with torch.autocast(device, torch.bfloat16):
        model(inputs(name, device))
    assert set(dtypes) == {torch.bfloat16}


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        pytest.param(name, stage, marks=() if (name, stage) == ("llama", "rownorm") else EXHAUSTIVE)
        for name in MODELS
        for stage in STAGES
    ],
)
def test_one_graph_under_compile(name, stage, without_interpreter):
    model = make(name, stage, torch.float64)
    expected = step(model, inputs(name)).logits
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(inputs(name)).detach(), expected)


@EXHAUSTIVE
@every_model
@every_stage
def test_compiled_by_inductor(name, stage, device, without_interpreter):
    model = make(name, stage, device=device)
    expected = step(model, inputs(name, device))
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True)
    got = compiled(inputs(name, device))
    generator = torch.Generator().manual_seed(2)
    model.zero_grad()
    got.backward(torch.randn(got.shape, generator=generator, dtype=torch.float64).to(got))
    gradients = {n: p.grad.double() for n, p in model.named_parameters()}
    assert type(expected)(got.detach().double(), gradients).relative_error(expected) < 2e-5


def test_an_unknown_stage():
    with pytest.raises(ValueError, match="use one of baseline, fused, rownorm"):
        make("llama", "quick")
