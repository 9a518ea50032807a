"""Gates before and after the norm, residual gates, groups of columns, and the rounding of each step."""

import pytest
import torch
import torch.nn.functional as F

import rownorm
from rownorm.launch import force
from rownorm.launch.rows import sample_strides
from support.cases import Case, call, ours, outputs_and_gradients
from support.criterion import assert_case, assert_same_bits
from support.regimes import ON_GPU, forced

# Those that have kernels with gates in the interpreter; a cluster's backward needs a GPU.
REGIMES = ("tile", "resident", "looped", "split")
GATES = [("silu", False), ("silu", True), ("sigmoid", False), (None, True)]
every_regime = pytest.mark.parametrize("regime", REGIMES)


def leaf(*shape, device, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, device=device, requires_grad=True)


def assert_same_gradients(y, expected, leaves):
    """The results, and the gradients of all leaves."""
    torch.testing.assert_close(y, expected)
    dy = torch.randn_like(y)
    pairs = zip(
        torch.autograd.grad(y, leaves, dy), torch.autograd.grad(expected, leaves, dy), strict=True
    )
    for own, torchs in pairs:
        torch.testing.assert_close(own, torchs)


@pytest.mark.parametrize(("activation", "first"), GATES, ids=str)
@every_regime
def test_as_accurate_as_torch(regime, activation, first, device):
    """A center that differs by regime and a gate of another dtype by order: every pair occurs."""
    case = Case(
        regime in ("tile", "split"),
        torch.bfloat16,
        (2, 7, 70),
        gate_dtype=torch.float32 if first else torch.bfloat16,
        gate_activation=activation,
        gate_first=first,
    )
    with forced(regime, n_programs=3):
        assert_case(case, case.tensors(device), batches=4)


@pytest.mark.parametrize("first", [False, True], ids=["last", "first"])
@every_regime
def test_beside_everything_else(regime, first, device):
    case = Case(
        True,
        shape=(2, 5, 70),
        residual_dtype=torch.float32 if first else torch.float16,
        gate_dtype=torch.float32,
        bias=True,
        pre_bias=True,
        activation="silu",
        scale="samples",
        shift="samples",
        residual_gate="samples",
        gate_activation="silu",
        gate_first=first,
        weight_shift=1.0,
    )
    with forced(regime, n_programs=3):
        assert_case(case, case.tensors(device), batches=4)


@every_regime
def test_the_gradient_is_that_of_the_stored_h(regime, device):
    """Rows far from 0, whose deviations are rounded away where h is stored: u has other statistics then."""
    x = torch.randn(3, 70, device=device)
    residual = torch.randn(3, 70, device=device).half() + 3000
    gate = torch.ones(3, 70, device=device)
    gate[:, :5] += 0.001
    leaves = [t.requires_grad_() for t in (x, residual, gate)]
    with forced(regime):
        y, h = rownorm.add_layer_norm(x, residual, gate=gate, gate_first=True)
        dy = torch.randn_like(y)
        own = torch.autograd.grad(y, leaves, dy)
    stored = h.detach().double().requires_grad_()
    wide = gate.detach().double().requires_grad_()
    expected = F.layer_norm(stored * wide, (70,))
    dstored, dgate = torch.autograd.grad(expected, (stored, wide), dy.double())
    for gradient, exact in zip(own, (dstored, dstored, dgate), strict=True):
        torch.testing.assert_close(
            gradient.double(), exact, rtol=2e-3, atol=2e-3 * exact.abs().max().item()
        )


@pytest.mark.parametrize("extent", ["columns", "samples", "rows"])
@every_regime
def test_residual_gate(regime, extent, device):
    """Alone, with a pre_bias, and with x and a residual of one dtype, whose gradients differ by the gate."""
    case = Case(
        regime in ("resident", "looped"),
        torch.bfloat16,
        (
            2,
            7 if ON_GPU else 3,
            70,
        ),  # rows that the programs cannot share evenly; few in the interpreter
        residual_dtype=torch.bfloat16,
        residual_gate=extent,
        pre_bias=extent != "rows",
    )
    with forced(regime, n_programs=4):
        assert_case(case, case.tensors(device), batches=4)


@every_regime
def test_the_same_bits_every_time_and_for_one_gradient(regime, device):
    case = Case(
        True,
        shape=(2, 3, 33),
        residual_dtype=torch.float32,
        gate_dtype=torch.float32,
        gate_activation="silu",
        gate_first=regime in ("tile", "split"),
        residual_gate="samples",
        rounding="each" if regime in ("tile", "looped") else "once",
    )
    tensors = case.tensors(device)
    with forced(regime, n_programs=3):
        every, again = ours(case, tensors), ours(case, tensors)
        for name, value in every.items():
            assert_same_bits(value, again[name])
        for wanted in ("x", "gate", "residual_gate"):
            one = outputs_and_gradients(lambda inputs: call(case, inputs), tensors, (wanted,))
            assert_same_bits(one[f"d{wanted}"], every[f"d{wanted}"])


@pytest.mark.parametrize("first", [False, True], ids=["last", "first"])
def test_strided_gates(first, device):
    """Half of a projection is read in place, heads between other heads, too; a transposed gate is copied."""
    x = leaf(2, 3, 4, 16, device=device)
    half = leaf(2, 3, 4, 32, device=device)[..., 16:]
    heads = leaf(2, 3, 12, 16, device=device)[:, :, 4:8]
    transposed = leaf(16, 3, 4, 2, device=device).permute(3, 1, 2, 0)
    for gate in (half, heads, transposed):
        y = rownorm.rms_norm(x, gate=gate, gate_activation="silu", gate_first=first)
        u = x * F.silu(gate) if first else x
        expected = F.rms_norm(u, (16,), eps=1e-6)
        assert_same_gradients(y, expected if first else expected * F.silu(gate), (x, gate))


def test_residual_gates_of_other_shapes_than_scale(device):
    """They are broadcast to each other for the kernels, and the gradient of each has its own shape."""
    x, residual = leaf(3, 5, 40, device=device), leaf(3, 5, 40, device=device)
    gate, scale = leaf(40, device=device), leaf(3, 1, 40, device=device)
    with force(n_programs=3):
        y, h = rownorm.add_layer_norm(x, residual, residual_gate=gate, scale=scale)
        stream = residual + gate * x
        expected = F.layer_norm(stream, (40,)) * scale
        leaves = (x, residual, gate, scale)
        assert_same_gradients(y * h, expected * stream, leaves)
        y, h = rownorm.add_layer_norm(x, residual, residual_gate=gate, scale=scale)
        assert_same_gradients(h, residual + gate * x, leaves[:3])  # y is not used


@pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
def test_no_rows(center, device):
    x, gate = leaf(0, 40, device=device), leaf(0, 40, device=device)
    residual_gate = leaf(40, device=device)
    norm = rownorm.add_layer_norm if center else rownorm.add_rms_norm
    rounding = "each" if center else "once"
    y, h = norm(x, x, gate=gate, residual_gate=residual_gate, gate_first=center, rounding=rounding)
    gradients = torch.autograd.grad((y.sum(), h.sum()), (x, gate, residual_gate))
    assert [g.shape for g in gradients] == [x.shape, gate.shape, residual_gate.shape]
    assert not any(g.any() for g in gradients)


@pytest.mark.parametrize(("first", "cols"), [(False, 16), (True, 16), (True, 7)])
def test_groups_of_columns(first, cols, device):
    x, gate = (leaf(2, 5, 3 * cols, device=device) for _ in range(2))
    weight, bias = leaf(3 * cols, device=device), leaf(3 * cols, device=device)
    options = {"gate_activation": "silu", "gate_first": first, "weight_shift": 1.0}

    def by_torch(gate):
        u = x * F.silu(gate) if first else x
        z = F.rms_norm(u.unflatten(-1, (3, cols)), (cols,), eps=1e-6).flatten(-2)
        z = z * (1 + weight) + bias
        return z if first else z * F.silu(gate)

    y = rownorm.rms_norm(x, weight, bias, gate=gate, group_cols=cols, **options)
    assert_same_gradients(y, by_torch(gate), (x, gate, weight, bias))
    y, h = rownorm.add_layer_norm(x, x, weight, weight, group_cols=cols)
    grouped = F.layer_norm((2 * x).unflatten(-1, (3, cols)), (cols,)).flatten(-2)
    torch.testing.assert_close(y, grouped * weight + weight)
    torch.testing.assert_close(h, 2 * x)
    whole = rownorm.rms_norm(x, weight, group_cols=3 * cols)
    torch.testing.assert_close(whole, rownorm.rms_norm(x, weight))


@every_regime
def test_each_step_is_rounded(regime, device):
    """As where each is an operator of PyTorch. Another order of the norm's sums changes one element of a hundred."""
    x, residual, gate = torch.randn(3, 2, 5, 70, device=device).half()
    scale, shift, residual_gate = torch.randn(3, 2, 1, 70, device=device).half()
    pre_bias = torch.randn(70, device=device).half()
    with forced(regime):
        y, h = rownorm.add_layer_norm(
            x,
            residual,
            pre_bias=pre_bias,
            scale=scale,
            shift=shift,
            residual_gate=residual_gate,
            scale_shift=1.0,
            gate=gate,
            gate_activation="sigmoid",
            rounding="each",
        )
    stream = residual + residual_gate * (x + pre_bias)
    expected = F.layer_norm(stream, (70,)) * (1 + scale) + shift
    assert_same_bits(h, stream)
    assert (y != expected * torch.sigmoid(gate)).float().mean() < 0.02


@pytest.mark.parametrize("n_cols", [1, 3, 17, 33, 65])
def test_odd_widths(n_cols, device):
    """Every form, each width in another regime: a row of one column, and around powers of two."""
    regime = REGIMES[n_cols % len(REGIMES)]
    gated = {"gate_dtype": torch.float32, "gate_activation": "silu"}
    samples = dict.fromkeys(("scale", "shift", "residual_gate"), "samples")
    residual = {"residual_dtype": torch.float32}
    forms = (gated, gated | {"gate_first": True}, residual | samples | {"rounding": "each"})
    for fields in forms:
        case = Case(False, shape=(2, 3, n_cols), **fields)
        with forced(regime, n_programs=2):
            assert_case(case, case.tensors(device), batches=32)


def test_groups_in_bf16(device):
    """The same bits every time, and those of fp64 but for one rounding."""
    x, gate = (torch.randn(2, 5, 48, device=device).bfloat16() for _ in range(2))
    weight = torch.rand(48, device=device).bfloat16()
    options = {"gate_activation": "silu", "gate_first": True, "group_cols": 16}

    def results(*tensors):
        leaves = [t.requires_grad_() for t in tensors]
        y = rownorm.rms_norm(leaves[0], leaves[2], gate=leaves[1], **options)
        return y, *torch.autograd.grad(y, leaves, torch.ones_like(y))

    first, again = results(x, gate, weight), results(x, gate, weight)
    exact = results(*(t.detach().double() for t in (x, gate, weight)))
    for one, same, truth in zip(first, again, exact, strict=True):
        assert_same_bits(one, same)
        limit = 2.0**-8 * truth.abs() + 1e-5
        assert ((one.double() - truth).abs() <= limit).all()


def test_a_residual_gate_that_is_a_chunk_is_read_in_place(device):
    x, residual = leaf(3, 5, 40, device=device), leaf(3, 5, 40, device=device)
    projection = leaf(3, 1, 6 * 40, device=device)
    shift, scale, gate, *_ = projection.chunk(6, dim=-1)
    assert sample_strides(x.shape, (scale, shift, gate)) == (240, 240, 240)
    y, h = rownorm.add_layer_norm(
        x, residual, residual_gate=gate, scale=scale, shift=shift, scale_shift=1.0
    )
    stream = residual + gate * x
    expected = F.layer_norm(stream, (40,)) * (1 + scale) + shift
    assert_same_gradients(y * h, expected * stream, (x, residual, projection))
