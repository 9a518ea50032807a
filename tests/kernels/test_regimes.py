"""Every regime, forced on small rows: widths around its block sizes, and all pairs of options."""

from dataclasses import replace

import pytest
import torch

import rownorm
from rownorm.kernels.backward.column_sums import column_sums
from rownorm.launch import Device, Problem, force, plan
from rownorm.launch.backward import calls
from rownorm.launch.rows import RowLayout
from rownorm.program import Program
from support.cases import Case, call, ours
from support.criterion import assert_case, assert_gradients_at_stored_h, assert_same_bits
from support.oracle import exact, oracle
from support.pairwise import combinations, name_of
from support.regimes import ON_GPU, REGIMES, forced

NORMS = pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
EVERY_REGIME = pytest.mark.parametrize("regime", REGIMES)
WIDTHS = (1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)


# The interpreter takes about a second for each case, so a regime has a third of its cases there: every pair of options
# still occurs in two regimes or so. All run on a GPU, and with --exhaustive.
SHARE = 1 if ON_GPU else 3
ALL_PAIRS = [
    pytest.param(
        regime,
        case,
        id=f"{regime}-{name_of(case)}",
        marks=() if i % SHARE == seed % SHARE else pytest.mark.exhaustive,
    )
    for seed, regime in enumerate(REGIMES)
    for i, case in enumerate(combinations(seed))
]


@pytest.mark.parametrize(("regime", "case"), ALL_PAIRS)
def test_options_in_every_pair(regime, case, device):
    with forced(regime):
        assert_case(case, case.tensors(device))


@pytest.mark.parametrize("n_cols", WIDTHS)
@EVERY_REGIME
def test_widths_around_powers_of_two(regime, n_cols, device):
    # Widths alternate between the norms. Each norm gets full, nearly full and nearly empty blocks.
    for center in (True, False) if regime == "tile" else ((n_cols + len(regime)) % 2 == 0,):
        case = Case(center, shape=(2, n_cols), bias=True, pre_bias=True)
        with forced(regime):
            assert_case(case, case.tensors(device))


@pytest.mark.parametrize("n_rows", [1, 2, 4, 5, 9])
@EVERY_REGIME
def test_row_counts(regime, n_rows, device):
    """Fewer rows than a tile has, as many, and one more. Two programs share them in backward."""
    case = Case(True, shape=(n_rows, 20), bias=True)
    with forced(regime, n_programs=2):
        assert_case(case, case.tensors(device))


@pytest.mark.parametrize("regime", ["tile", "resident", "cluster"])
def test_a_large_row_does_not_change_its_neighbors(regime, device):
    """A constant row has ``x_hat`` = 0, so it adds nothing to the gradient of the weight."""
    case = Case(True, torch.bfloat16, shape=(4, 70), bias=True, activation="gelu")
    tensors = case.tensors(device)
    near = tensors["x"].clone()
    with forced(regime):
        alone = ours(case, tensors)
        tensors["x"][1] = 1e4 + 64 * near[1]
        tensors["x"][3] = 1234.0
        assert_case(case, tensors)
        results = ours(case, tensors)
        for row in (0, 2):
            for name in ("y", "dx"):
                assert_same_bits(results[name][row], alone[name][row])
        constant = tensors | {"x": tensors["x"][3:].contiguous(), "dy": tensors["dy"][3:]}
        assert not ours(replace(case, shape=(1, 70)), constant)["dweight"].any()


@pytest.mark.parametrize("n_cols", [1, 70, 130])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@EVERY_REGIME
def test_gradients_are_those_at_the_stored_h(regime, dtype, n_cols, device):
    with forced(regime):
        assert_gradients_at_stored_h(dtype, n_cols, device)


@pytest.mark.parametrize("eps", [0.0, 1e-5])
@pytest.mark.parametrize("regime", ["tile", "resident"])
@NORMS
def test_fast_rstd_is_as_accurate(center, regime, eps, device):
    case = Case(center, torch.bfloat16, shape=(5, 70), bias=center, eps=eps)
    tensors = case.tensors(device)
    with forced(regime, fast_rstd=True):
        assert_case(case, tensors)
        assert_gradients_at_stored_h(torch.bfloat16, 70, device)
        tensors["x"][3] *= 1e-18
        assert_case(case, tensors)


@pytest.mark.parametrize("shape", [(0, 20), (3, 0, 20)])
@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
@EVERY_REGIME
def test_no_rows_give_empty_outputs_and_zero_parameter_gradients(regime, shape, residual, device):
    residual_dtype = torch.float32 if residual else None
    case = Case(True, shape=shape, bias=True, pre_bias=True, residual_dtype=residual_dtype)
    with forced(regime):
        results = ours(case, case.tensors(device))
    rows = [name for name in ("y", "h", "dx", "dresidual") if name in results]
    assert all(results[name].shape == shape for name in rows)
    for name in ("dpre_bias", "dweight", "dbias"):
        assert torch.equal(results[name], torch.zeros(20, device=device)), name


@pytest.mark.parametrize("n_dims", [1, 2, 3, 4])
def test_dimensions(n_dims, device):
    shape = (2, 1, 3, 10)[-n_dims:]
    case = Case(True, shape=shape, bias=True, residual_dtype=torch.float32)
    assert_case(case, case.tensors(device))


@pytest.mark.parametrize("eps", [0.0, 1e-12, 1.0, 3])
@NORMS
def test_eps(center, eps, device):
    case = Case(center, eps=eps, bias=center)
    assert_case(case, case.tensors(device))


@EVERY_REGIME
def test_llama_rounding_is_that_of_the_input_dtype(regime, device):
    """``x_hat`` is rounded to fp16, then multiplied by a weight in fp32."""
    case = Case(False, torch.float16, parameter_dtype=torch.float32, rounding="llama")
    tensors = case.tensors(device)
    x_hat = oracle(replace(case, rounding="once", weight=False), tensors | {"weight": None})["y"]
    nearest = torch.from_numpy(x_hat.astype("float64")).to(device).half().double()
    product = nearest * tensors["weight"].double()
    # Very close to a tie, fp32 may round the other way. Those elements are not compared.
    spacing = 2.0 ** (torch.frexp(nearest.abs()).exponent - 11)
    to_tie = (torch.from_numpy(x_hat.astype("float64")).to(device) - nearest).abs() / spacing - 0.5
    clear = to_tie.abs() > 1e-2
    assert clear.float().mean() > 0.9
    with forced(regime):
        y, _ = call(case, tensors)
        once, _ = call(replace(case, rounding="once"), tensors)
    # fp32 arithmetic (8 roundings) and the store.
    allowed = product.abs() * (8 * 2.0**-24) + spacing
    assert ((y.double() - product).abs() <= allowed)[clear].all()
    assert torch.equal(y[clear], product.float().half()[clear])
    assert not torch.equal(once, y)


@EVERY_REGIME
def test_relu_has_no_gradient_at_zero(regime, device):
    """Rows of zeros give z = 0 exactly, where torch's relu has slope 0."""
    x = torch.zeros(2, 40, device=device, requires_grad=True)
    weight = torch.ones(40, device=device, requires_grad=True)
    case = Case(False, activation="relu")
    inputs = {"x": x, "weight": weight, "residual": None, "bias": None, "pre_bias": None}
    with forced(regime):
        y, _ = call(case, inputs)
        y.sum().backward()
    assert torch.equal(y, torch.zeros_like(y))
    assert torch.equal(x.grad, torch.zeros_like(x))


@pytest.mark.parametrize("data", ["normal", "offset", "constant"])
@pytest.mark.parametrize("residual_dtype", [None, torch.bfloat16], ids=str)
def test_clusters_with_and_without_prefetch_give_the_same_bits(residual_dtype, data, device):
    """With one stage each cluster takes one row. With two, two clusters take the rows in turn."""
    case = Case(
        True,
        torch.bfloat16,
        (5, 70),
        data,
        residual_dtype=residual_dtype,
        bias=True,
        activation="gelu",
    )
    tensors, results = case.tensors(device), []
    for stages in (1, 2):
        with forced("cluster", num_stages=stages, n_programs=2):
            results.append(ours(case, tensors))
        assert_case(case, tensors, results=results[-1])
    for name, value in results[0].items():
        assert_same_bits(value, results[1][name])


@pytest.mark.parametrize("chunks", [1, 2, 4, 5])
@NORMS
def test_looped_rows_that_fill_their_chunks(center, chunks, device):
    """The number of chunks is a constant of the kernel when there are at most four."""
    case = Case(center, torch.bfloat16, (3, 32 * chunks), bias=center, pre_bias=True)
    with forced("looped"):
        assert_case(case, case.tensors(device))


@NORMS
def test_wide_rows_whose_parts_differ(center, device):
    """13 parts, which is no power of two, with different means."""
    case = Case(center, shape=(1, 200), bias=center)
    tensors = case.tensors(device)
    tensors["x"] += torch.arange(200, device=device) // 8 % 7 * 10.0
    with force(regime="split", block_cols=16, part_cols=16):
        results = ours(case, tensors)
    truth = oracle(case, tensors)
    for name, value in results.items():
        # 16 roundings on the longest path: two sums (tree of 4 and 4 levels), mean, sqrt, division,
        # affine.
        scale = abs(truth[name]).max()
        assert (abs(exact(value) - truth[name]) <= 16 * 2.0**-23 * scale).all(), name


def test_bf16_rounds_to_nearest(device):
    case = Case(False, torch.bfloat16, (4, 1000), weight=False)
    tensors = case.tensors(device)
    y, _ = call(case, tensors)
    expected = torch.from_numpy(oracle(case, tensors)["y"].astype("float64")).to(device)
    agree = (y == expected.bfloat16()).float().mean()
    assert agree > 0.99  # the rest are too close to a tie for fp32


@pytest.mark.parametrize("activation", ["silu", "gelu"])
@EVERY_REGIME
def test_masked_lanes_do_not_change_the_row(regime, activation, device):
    """Rounded to fp16, a masked lane would be infinite, and the slope of the activation there NaN."""
    case = Case(True, torch.float16, (2, 40), bias=True, activation=activation, rounding="llama")
    tensors = case.tensors(device)
    tensors["x"].fill_(1000.0)
    with forced(regime):
        results = ours(case, tensors)
    assert all(torch.isfinite(each).all() for each in results.values())


@EVERY_REGIME
def test_a_huge_constant_row_gives_its_bias(regime, device):
    """The square of an element overflows. Programs whose columns are all masked must not return NaN."""
    x, bias = torch.full((3, 33), 3e19, device=device), torch.randn(33, device=device)
    with forced(regime):
        y = call(
            Case(True, bias=True, weight=False),
            {"x": x, "bias": bias} | dict.fromkeys(("residual", "pre_bias", "weight")),
        )[0]
    torch.testing.assert_close(y, bias.expand(3, 33), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@EVERY_REGIME
def test_rows_near_the_largest_numbers_are_finite_where_torch_is(
    regime, dtype, device, silent_overflow
):
    """The variance overflows, so rstd is 0 and y is the bias. No sum may become infinite before that, or NaN."""
    n_cols = 70
    half = torch.finfo(dtype).max / 2
    ramp = torch.linspace(0.5, 1.0, n_cols)
    alternating = torch.ones(n_cols)
    alternating[::2] = -1
    random = torch.rand(n_cols, generator=torch.Generator().manual_seed(0)) * 2 - 1
    rows = torch.stack([ramp * half, -ramp * half, alternating * half, random * half, ramp * 1e38])
    x, bias = rows.to(dtype).to(device), torch.randn(n_cols).to(dtype).to(device)
    assert torch.nn.functional.layer_norm(x.cpu(), (n_cols,)).isfinite().all()
    case = Case(True, dtype, shape=tuple(x.shape), bias=True)
    weight, dy = torch.ones_like(bias), torch.ones_like(x)
    tensors = {"x": x, "weight": weight, "bias": bias, "dy": dy}
    with forced(regime):
        y = call(case, tensors | dict.fromkeys(("residual", "pre_bias")))[0]
        x.requires_grad_()
        (dx,) = torch.autograd.grad(rownorm.layer_norm(x, weight, bias), x, dy)
    torch.testing.assert_close(y, bias.expand_as(x), rtol=0, atol=0)
    assert dx.isfinite().all()


@pytest.mark.parametrize("present", [(0,), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("n_partials", [1, 33, 600])
@pytest.mark.parametrize("block", [(512, 8), (128, 32), (32, 128)], ids=str)
def test_partial_sums_are_added_in_any_tile(block, n_partials, present, device):
    """Every column of every present parameter is summed once, for any shape of tile."""
    n_cols, align = 70, 2
    partial = torch.randn(3, n_partials, n_cols).to(device)
    sums = torch.full((3, n_cols), torch.nan, device=device)
    given = [partial[i] if i in present else None for i in range(3)]
    made = [sums[i] if i in present else None for i in range(3)]
    rows, cols = block
    grid = (len(present) * -(-n_cols // cols),)
    column_sums[grid](*given, *made, n_partials, n_cols // align, align, rows, cols)
    expected = partial.double().sum(1)
    for i in range(3):
        if i in present:
            torch.testing.assert_close(sums[i].double(), expected[i], atol=1e-5, rtol=1e-5)
        else:
            assert sums[i].isnan().all()


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_tiles_of_partial_sums_depend_on_the_width_only(arch):
    on = Device("a GPU", arch, 132, 32)
    for n_cols in (256, 4096, 8192, 65536):
        blocks = set()
        for n_rows in (100, 5000):
            asked = Problem("backward", n_rows, n_cols, torch.bfloat16, None, False, 1, on)
            layouts = [RowLayout(n_cols)] * 3
            last = calls(asked, plan(asked), Program(False, 1e-6), *layouts)[-1]
            if last.kernel is column_sums:
                blocks.add((last.constants["BLOCK_ROWS"], last.constants["BLOCK_COLS"]))
        assert len(blocks) == 1
