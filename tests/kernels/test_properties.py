"""Properties that hold for any shape, layout and choice of options (hypothesis)."""

import hypothesis
import torch
from hypothesis import strategies as st

from rownorm.launch import force
from rownorm.program import ACTIVATIONS, GATE_ACTIVATIONS, ROWS, SAMPLES
from support.cases import DTYPES, EXTENTS, INPUTS, Case, call, ours, outputs_and_gradients
from support.oracle import exact, oracle
from support.regimes import REGIMES, forced
from support.rounding import one_rounding

settings = hypothesis.settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=40,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
# eps is 1/100, so rstd is at most 10. An output is at most 64 roundings of numbers up to 100 away from its input.
ROUNDINGS = 64 * 100

plans = st.one_of(
    st.just({}),
    st.builds(lambda rows: {"regime": "tile", "block_rows": rows}, st.sampled_from([2, 4, 8])),
    st.just({"regime": "resident"}),
    st.builds(lambda cols: {"regime": "looped", "block_cols": cols}, st.sampled_from([16, 32])),
    st.builds(
        lambda cols, parts: {"regime": "split", "block_cols": cols, "part_cols": parts * cols},
        st.sampled_from([16, 32]),
        st.sampled_from([1, 2]),
    ),
)
shapes = st.tuples(st.integers(0, 3), st.integers(1, 50)) | st.tuples(
    st.integers(1, 2), st.integers(1, 2), st.integers(1, 20)
)


@st.composite
def cases(draw) -> Case:
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    weight, has_gate = draw(st.booleans()), draw(st.booleans())
    residual_dtype = draw(st.sampled_from([None, torch.float32, torch.float64]))
    extents = {name: draw(st.sampled_from([None, *EXTENTS])) for name in SAMPLES}
    if residual_dtype is None:
        extents["residual_gate"] = None
    return Case(
        center=draw(st.booleans()),
        dtype=dtype,
        shape=draw(shapes),
        residual_dtype=residual_dtype,
        gate_dtype=draw(st.sampled_from([torch.float16, torch.float32])) if has_gate else None,
        gate_activation=draw(st.sampled_from([None, *GATE_ACTIVATIONS])) if has_gate else None,
        gate_first=has_gate and draw(st.booleans()),
        **extents,
        pre_bias=draw(st.booleans()),
        weight=weight,
        bias=draw(st.booleans()),
        parameter_dtype=draw(st.sampled_from([None, torch.float16, torch.float32])),
        activation=draw(st.sampled_from([None, "silu", "gelu", "gelu_tanh"])),  # smooth ones
        weight_shift=draw(st.sampled_from([0.0, 1.0, -0.5])) if weight else 0.0,
        scale_shift=draw(st.sampled_from([0.0, 1.0])) if extents["scale"] else 0.0,
        eps=0.01,
    )


def strided(draw, t: torch.Tensor) -> torch.Tensor:
    """The same values with a random storage offset, padding after rows and order of dimensions."""
    order = draw(st.permutations(range(t.dim())))
    padding = draw(st.integers(0, 3))
    moved = t.permute(order)
    room = t.new_full((*moved.shape[:-1], moved.shape[-1] + padding), float("nan"))
    offset = draw(st.integers(0, 3))
    flat = t.new_full((room.numel() + offset,), float("nan"))
    view = flat[offset:].view(room.shape)[..., : moved.shape[-1]]
    view.copy_(moved)
    inverse = sorted(range(t.dim()), key=list(order).__getitem__)
    return view.permute(inverse)


def allowed(truth, dtype, case: Case):
    """The largest allowed error. Backward starts from the stored h, in the dtype of the residual."""
    coarsest = torch.float32 in (case.residual_dtype or case.dtype, case.dtype)
    unit = 2.0 ** (-24 if coarsest else -53)
    largest = 1 + abs(truth).max(initial=0)
    return ROUNDINGS * unit * largest + one_rounding(truth, dtype)


@settings
@hypothesis.given(cases(), plans, st.data())
def test_any_case_computes_the_row_program(device, case, plan, data):
    """Any options, shape, strides and plan: outputs and requested gradients."""
    torch.manual_seed(0)
    tensors = case.tensors(device)
    for name in (*ROWS, "dy", "dh"):
        if tensors[name] is not None:
            tensors[name] = strided(data.draw, tensors[name])
    present = [name for name in INPUTS if tensors[name] is not None]
    wanted = data.draw(st.lists(st.sampled_from(present), min_size=1, unique=True))
    with force(**plan):
        results = outputs_and_gradients(lambda inputs: call(case, inputs), tensors, wanted)
    truth = oracle(case, tensors)
    for name, value in results.items():
        error = abs(exact(value) - truth[name])
        limit = allowed(truth[name], value.dtype, case)
        assert (error <= limit).all(), name


@settings
@hypothesis.given(
    st.sampled_from(DTYPES), st.integers(1, 70), st.sampled_from([None, *ACTIVATIONS]), plans
)
def test_scaling_by_a_power_of_two_changes_nothing(device, dtype, n_cols, activation, plan):
    """RMSNorm with eps = 0 does not depend on the scale of a row: the same bits."""
    case = Case(False, dtype, (2, n_cols), eps=0.0, activation=activation)
    torch.manual_seed(0)
    tensors = case.tensors(device)
    with force(**plan):
        y, _ = call(case, tensors)
        scaled, _ = call(case, tensors | {"x": tensors["x"] * 4})
    assert torch.equal(y, scaled)


@hypothesis.settings(settings, max_examples=20)
@hypothesis.given(st.integers(2, 50), st.sampled_from(REGIMES))
def test_gradient_is_orthogonal_to_what_the_norm_ignores(device, n_cols, regime):
    """LayerNorm ignores a shift of a row, so dx sums to zero. RMSNorm with eps = 0 ignores its scale."""
    torch.manual_seed(0)
    for center in (True, False):
        case = Case(center, torch.float64, (2, n_cols), eps=1e-3 if center else 0.0)
        tensors = case.tensors(device)
        with forced(regime):
            dx = ours(case, tensors)["dx"]
        direction = torch.ones_like(dx) if center else tensors["x"]
        size = (dx.abs() * direction.abs()).sum(-1) + 1
        assert ((dx * direction).sum(-1).abs() <= ROUNDINGS * 2.0**-53 * size).all()
