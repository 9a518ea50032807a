"""Tests that need a GPU: sizes past 2^31, real shapes, streams, and every way to launch a kernel."""

import fcntl
from dataclasses import replace

import pytest
import torch

import rownorm
from rownorm import launch
from rownorm.launch import launcher, native
from rownorm.ops import execute
from rownorm.program import INPUTS, SAMPLES, Inputs
from support.cases import EXTENTS, Case, call, ours
from support.criterion import assert_case, assert_same_bits
from support.oracle import exact, oracle
from support.rounding import one_rounding

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="needs a GPU: too large for the interpreter, or not supported by it",
)
BF16 = torch.bfloat16
ROWS = ("x", "residual", "dy", "dh")


def enough_memory(n_bytes: int) -> None:
    free, _ = torch.cuda.mem_get_info()
    if free < n_bytes:
        pytest.skip(f"needs {n_bytes >> 30} GiB of GPU memory, {free >> 30} GiB are free")


@pytest.fixture
def alone(tmp_path_factory):
    """One such test at a time over all test processes, because several would not fit in memory."""
    with (tmp_path_factory.getbasetemp().parent / "alone.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def unpoisoned():
    """Large tensors are not filled with NaN, which takes long."""
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.cuda.empty_cache()
    yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize(
    ("n_rows", "n_cols"),
    [(2_200_000_000 // 256, 256), (2_200_000_000 // 8192, 8192), (2100, 1 << 20)],
)
def test_past_two_to_the_31_elements(n_rows, n_cols, device, alone, unpoisoned):
    """Forward and backward, compared on a sample of rows. The last one is past the range of 32 bits."""
    assert n_rows * n_cols > 1 << 31
    enough_memory(8 * n_rows * n_cols * 2)
    x = torch.empty(n_rows, n_cols, dtype=BF16, device=device).normal_()
    dy = torch.empty_like(x).normal_()
    weight = torch.rand(n_cols, device=device, dtype=BF16).requires_grad_()
    x.requires_grad_()
    y = rownorm.rms_norm(x, weight)
    dx, dweight = torch.autograd.grad(y, (x, weight), dy)
    sample = torch.tensor([0, 1, n_rows // 2, n_rows - 2, n_rows - 1], device=device)
    case = Case(False, BF16, (5, n_cols))
    rows = {"x": x.detach()[sample], "weight": weight.detach(), "dy": dy[sample]}
    truth = oracle(case, {"residual": None, "pre_bias": None, "bias": None, "dh": None} | rows)
    for name, value in (("y", y.detach()[sample]), ("dx", dx[sample])):
        error = abs(exact(value) - truth[name])
        # The store and 64 fp32 roundings on the longest path.
        limit = one_rounding(truth[name], BF16) + 64 * 2.0**-24 * abs(truth[name]).max()
        assert (error <= limit).all(), name
    expected = torch.zeros(n_cols, dtype=torch.float64, device=device)
    at_once = max(1, (1 << 26) // n_cols)
    for some_x, some_dy in zip(x.detach().split(at_once), dy.split(at_once), strict=True):
        wide = some_x.double()
        rstd = (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        expected += (wide * rstd * some_dy.double()).sum(0)
    torch.testing.assert_close(dweight.double(), expected, rtol=2.0**-8, atol=1e-3 * n_rows**0.5)


HUGE_FORMS = {
    "gate last": {"gate_dtype": BF16, "gate_activation": "silu"},
    "gate first": {"gate_dtype": BF16, "gate_activation": "silu", "gate_first": True},
    "scale and shift of samples": {"weight": False, "scale": "samples", "shift": "samples"},
    "scale and shift of rows": {
        "weight": False,
        "scale": "rows",
        "shift": "rows",
        "rounding": "each",
    },
    "residual_gate": {
        "weight": False,
        "residual_dtype": BF16,
        "residual_gate": "samples",
        "scale": "samples",
    },
}


@pytest.mark.parametrize("n_cols", [256, 3072])
@pytest.mark.parametrize("form", HUGE_FORMS)
def test_forms_past_two_to_the_31_elements(form, n_cols, device, alone, unpoisoned):
    """Rows past the range of 32 bits have the results and gradients that they have alone: the same bits where the mode
    promises them. The sums over the rows of a sample are close.
    """
    fields = HUGE_FORMS[form]
    sample_rows = 1 << 12
    n_samples = (1 << 31) // (sample_rows * n_cols) + 2
    case = Case(form != "gate last", BF16, (n_samples, sample_rows, n_cols), **fields)
    enough_memory(16 * n_samples * sample_rows * n_cols * 2)

    def random(shape):
        return torch.empty(shape, dtype=BF16, device=device).normal_()

    names = [
        name
        for name in INPUTS
        if name in ("x", "residual", "gate", "scale", "shift", "residual_gate")
    ]
    present = {
        "x": case.shape,
        "residual": case.shape if case.residual_dtype else None,
        "gate": case.shape if case.gate_dtype else None,
        **{
            name: EXTENTS[extent](case.shape) for name in SAMPLES if (extent := getattr(case, name))
        },
    }
    tensors = {name: random(shape) for name in names if (shape := present.get(name))}
    tensors = dict.fromkeys((*INPUTS, "dh")) | tensors | {"dy": random(case.shape)}
    if case.weight:
        tensors["weight"] = random((n_cols,))
    if case.residual_dtype:
        tensors["dh"] = random(case.shape)
    whole = ours(case, tensors)
    last = slice(n_samples - 1, n_samples)
    part = {
        name: t[last] if t is not None and t.shape[0] == n_samples else t
        for name, t in tensors.items()
    }
    alone_case = replace(case, shape=(1, sample_rows, n_cols))
    with rownorm.batch_invariant():
        batch = ours(case, tensors)
        single = ours(alone_case, part)
    for name in whole:
        if batch[name].shape[0] != n_samples:  # of the weight: over all rows
            continue
        if batch[name].shape == case.shape:
            assert_same_bits(batch[name][last], single[name])
        torch.testing.assert_close(
            whole[name][last].float(), single[name].float(), rtol=2.0**-6, atol=2.0**-6
        )


@pytest.mark.parametrize(
    ("sample_rows", "n_cols"),
    [(7, 64), (7, 1152), (7, 4096), (7, 8192), (100, 20_000), (7, 70_000)],
)
@pytest.mark.parametrize("form", HUGE_FORMS)
def test_real_widths_of_forms(form, sample_rows, n_cols, device):
    """With the plans that forms have by themselves: tiles, clusters, rows in chunks and in parts."""
    case = Case(form != "gate last", BF16, (3, sample_rows, n_cols), **HUGE_FORMS[form])
    assert_case(case, case.tensors(device), batches=8 if n_cols < 10_000 else 1)


@pytest.mark.parametrize(
    ("n_samples", "sample_rows", "n_cols"),
    [
        (1, 256, 1152),
        (1, 60_000, 1536),
        (64, 256, 3072),
        (3, 60_000, 1152),
        (64, 1024, 5120),
        (16_384, 1, 3072),
    ],
)
@pytest.mark.parametrize("residual", [False, True], ids=["modulated", "residual_gate"])
def test_real_samples(n_samples, sample_rows, n_cols, residual, device):
    """Chunks of one projection, of another dtype than x: against PyTorch in fp32, also the sums over a sample."""
    x = torch.randn(n_samples, sample_rows, n_cols, device=device).to(BF16).requires_grad_()
    stream = torch.randn_like(x).requires_grad_() if residual else None
    projection = 0.5 * torch.randn(n_samples, 1, 3 * n_cols, device=device)
    projection.requires_grad_()
    scale, shift, gate = projection.chunk(3, dim=-1)
    options = {"scale": scale, "shift": shift, "scale_shift": 1.0}
    if stream is None:
        y = rownorm.layer_norm(x, **options)
        h = x.float()
    else:
        y, _ = rownorm.add_layer_norm(x, stream, residual_gate=gate, **options)
        h = stream.float() + gate * x.float()
    expected = torch.nn.functional.layer_norm(h, (n_cols,)) * (1 + scale) + shift
    torch.testing.assert_close(y.float(), expected, rtol=2.0**-7, atol=2.0**-7)
    leaves = [t for t in (x, stream, projection) if t is not None]
    dy = torch.randn_like(y)
    actual = torch.autograd.grad(y, leaves, dy)
    exact = torch.autograd.grad(expected, leaves, dy.float())
    for own, torchs in zip(actual, exact, strict=True):
        limit = 2.0**-7 * torchs.float().abs().max().item()
        torch.testing.assert_close(own.float(), torchs.float(), rtol=2.0**-6, atol=limit)


REAL = [
    (32768, 256),
    (2048, 1024),
    (1024, 4096),
    (512, 8192),
    (512, 16384),
    (1024, 65536),
    (2, 131072),
    # Rows of several tiles, and rows shared by clusters whose last program has fewer columns or none.
    (300, 3000),
    (300, 5120),
    (150, 12288),
    (100, 20000),
    (70, 32768),
    (70, 65537),
    (70, 131072),
    (40, 262144),
    (2, 1 << 20),
]


@pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
@pytest.mark.parametrize(("n_rows", "n_cols"), REAL)
@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=str)
def test_real_shapes(dtype, n_rows, n_cols, center, device):
    """A part of the rows is compared. Parameter gradients are of those rows only."""
    case = Case(center, dtype, (n_rows, n_cols), bias=center)
    tensors = case.tensors(device)
    rows = slice(0, max(2, (1 << 17) // n_cols))
    some = {n: t[rows] if n in ROWS and t is not None else t for n, t in tensors.items()}
    part = Case(center, dtype, tuple(some["x"].shape), bias=center)
    whole, alone = ours(case, tensors), ours(part, some)
    results = alone | {name: whole[name][rows] for name in ("y", "dx")}
    assert_case(part, some, results=results, batches=1)


# The exact values of the wider ones take one to two minutes.
WIDER = [pytest.param(n, marks=pytest.mark.exhaustive) for n in (64, 65, 100, 127, 128)]
NARROW = (2, 3, 5, 8, 16, 17, 31, 32, 33, *WIDER)


@pytest.mark.parametrize("n_cols", NARROW)
@pytest.mark.parametrize("dtype", [BF16, torch.float32, torch.float64], ids=str)
def test_narrow_rows_fit_on_the_device(dtype, n_cols, device):
    """So many rows that every tile is in flight, plain and with every option: shared memory must suffice."""
    options = {"pre_bias": True, "activation": "gelu", "residual_dtype": torch.float32}
    for more in ({}, options):
        case = Case(True, dtype, (5000, n_cols), bias=True, **more)
        assert_case(case, case.tensors(device), batches=16)


@pytest.mark.parametrize(
    "n_cols", [45, 157, 198, 300, 301, 396, 450, 710, 863, 1501, 3002, 5729, 8191, 12001]
)
@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=str)
def test_rows_that_are_not_aligned(dtype, n_cols, device):
    """So many that each program has several. Compared with the same rows in fp64, which have other plans."""
    options, residual = {"pre_bias": True, "activation": "gelu"}, {"residual_dtype": torch.float32}
    for more in ({}, residual, options, options | residual):
        case = Case(True, dtype, (max(500, 4_000_000 // n_cols), n_cols), bias=True, **more)
        tensors = case.tensors(device)
        wide = {name: None if t is None else t.double() for name, t in tensors.items()}
        stream = case.residual_dtype and torch.float64
        truths = ours(replace(case, dtype=torch.float64, residual_dtype=stream), wide)
        for name, result in ours(case, tensors).items():
            truth = truths[name]
            # One rounding, and the error of an fp32 sum of all rows.
            limit = truth.abs() * torch.finfo(result.dtype).eps / 2 + 2.0**-18 * truth.abs().max()
            assert (abs(result.double() - truth) <= limit).all(), f"{name}, {case}"


@pytest.mark.parametrize("dtype", [BF16, torch.float32, torch.float64], ids=str)
def test_rows_of_one_column(dtype, device):
    """The one element is its own mean: y is the bias, and the terms of dx cancel up to their rounding."""
    case = Case(True, dtype, (5000, 1), bias=True)
    tensors = case.tensors(device)
    results = ours(case, tensors)
    assert_same_bits(results["y"], tensors["bias"].expand(5000, 1).contiguous())
    terms = tensors["dy"].double().abs() * tensors["weight"].double().abs() * case.program.eps**-0.5
    assert (results["dx"].double().abs() <= torch.finfo(dtype).eps * terms).all()


def test_heads_are_read_in_place(device):
    """Queries of a fused projection, forward and backward, against their contiguous copies."""
    n_heads, n_cols = 32, 128
    qkv = torch.randn(4, 512, 48, n_cols, device=device, dtype=BF16)
    heads = qkv[..., :n_heads, :]
    weight = torch.rand(n_cols, device=device, dtype=BF16).requires_grad_()
    dy = torch.randn(heads.shape, device=device, dtype=BF16)
    results = []
    for x in (heads, heads.contiguous()):
        x = x.detach().requires_grad_()
        y = rownorm.rms_norm(x, weight)
        results.append((y, *torch.autograd.grad(y, (x, weight), dy)))
    for in_place, copied in zip(*results, strict=True):
        assert_same_bits(in_place, copied)


def test_real_shapes_cover_every_regime():
    on = launch.device_of(0)
    met = {
        launch.plan(launch.Problem(direction, *shape, BF16, None, center, 2, on)).regime
        for shape in REAL
        for direction in ("forward", "backward")
        for center in (True, False)
    }
    clusters = {"cluster"} if on.clusters else set()
    grid = {"grid"} if on.arch.startswith("sm_") else set()
    assert met == {"tile", "resident", "looped", "split"} | clusters | grid


@pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
@pytest.mark.parametrize("n_cols", [12288, 20000, 65536, 131072, 262144])
def test_parameter_gradients_of_many_wide_rows(n_cols, center, device):
    """Every row counts once, in any cluster or group."""
    case = Case(center, BF16, (500, n_cols), bias=center)
    tensors = case.tensors(device)
    results = ours(case, tensors)
    wide = {name: None if t is None else t.double() for name, t in tensors.items()}
    truth = ours(Case(center, torch.float64, case.shape, bias=center), wide)
    for name in ("dweight", "dbias") if center else ("dweight",):
        # One rounding of bf16, and fp32 sums of 500 rows.
        torch.testing.assert_close(results[name].double(), truth[name], rtol=2.0**-8, atol=1e-3)


@pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
def test_every_option_in_a_cluster(center, device):
    case = Case(
        center,
        BF16,
        (70, 40000),
        residual_dtype=torch.float32,
        pre_bias=True,
        bias=True,
        activation="silu",
    )
    tensors = case.tensors(device)
    inputs = Inputs(*(tensors[name] for name in INPUTS))
    problem = launch.problem.forward_problem(inputs, case.program)
    if launch.device_of(0).clusters:
        assert launch.plan(problem).regime == "cluster"
    assert_case(case, tensors, batches=1)


def needs_a_grid() -> None:
    if not launch.device_of(0).arch.startswith("sm_"):
        pytest.skip("the grid regime needs an NVIDIA GPU")


def backward_plan(case: Case, tensors: dict) -> launch.Plan:
    inputs = Inputs(*(tensors[name] for name in INPUTS))
    saved = launch.problem.without_values(inputs, case.program)
    wanted = tuple(t is not None for t in inputs)
    has_residual = inputs.residual is not None
    return launch.plan(launch.problem.backward_problem(saved, case.program, has_residual, wanted))


GRID_SETTINGS = {"regime": "grid", "block_cols": 2048, "num_warps": 8}
GRID_SETTINGS |= {"pipeline_depth": 3, "num_stages": 3}
EVERYTHING = {"residual_dtype": torch.float32, "pre_bias": True, "bias": True, "activation": "silu"}


@pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
@pytest.mark.parametrize("n_cols", [40000, 99999, 131072, 262144])
def test_every_option_in_a_grid(n_cols, center, device):
    needs_a_grid()
    case = Case(center, BF16, (21, n_cols), **EVERYTHING)
    tensors = case.tensors(device)
    with launch.force(**GRID_SETTINGS):
        assert backward_plan(case, tensors).regime == "grid"
        assert_case(case, tensors, batches=1)


@pytest.mark.parametrize("n_cols", [200_000, 262144, 300_000, 524288])
def test_every_option_in_a_planned_grid(n_cols, device):
    """One or two programs per SM. The last part of a row is full or not."""
    needs_a_grid()
    case = Case(True, BF16, (17, n_cols), **EVERYTHING)
    tensors = case.tensors(device)
    assert backward_plan(case, tensors).regime == "grid"
    assert_case(case, tensors, batches=1)


@pytest.mark.parametrize(
    "settings",
    [
        {"pipeline_depth": 1, "num_stages": 1},
        {"pipeline_depth": 8},
        {"num_warps": 1, "block_cols": 1024},
    ],
    ids=str,
)
def test_a_grid_with_any_pipeline_depth(settings, device):
    """Depths 1 and 8, programs of one warp, and several groups."""
    needs_a_grid()
    case = Case(True, BF16, (100, 40000), bias=True)
    tensors = case.tensors(device)
    with launch.force(**GRID_SETTINGS | settings):
        assert backward_plan(case, tensors).n_programs > 1
        assert_case(case, tensors, batches=1)


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_a_grid_ends_for_any_sums(value, device):
    """A sum of all zero bits must not look like an empty message slot. NaN and infinities are sent like numbers."""
    needs_a_grid()
    case = Case(True, BF16, (40, 262144), bias=True)
    tensors = case.tensors(device)
    clean = ours(case, tensors)
    tensors["dy"][3] = value
    results = ours(case, tensors)
    assert_same_bits(results["dx"][4:], clean["dx"][4:])
    if value == 0.0:
        assert torch.equal(results["dx"][3], torch.zeros_like(results["dx"][3]))
    else:
        assert results["dx"][3].isnan().all()


def test_a_grid_gives_the_same_bits_every_time(device):
    needs_a_grid()
    for shape in ((100, 262144), (300, 131072)):
        case = Case(True, BF16, shape, bias=True, pre_bias=True, residual_dtype=torch.float32)
        tensors = case.tensors(device)
        with launch.force(**GRID_SETTINGS):
            assert backward_plan(case, tensors).regime == "grid"
            first = ours(case, tensors)
            for _ in range(20):
                for name, value in ours(case, tensors).items():
                    assert_same_bits(value, first[name])


def test_grids_on_several_streams_at_once(device):
    """Each grid needs nearly every SM, so they run one after another. All of them end."""
    needs_a_grid()
    case = Case(True, BF16, (200, 262144), bias=True)
    batches = [case.tensors(device) for _ in range(2)]
    expected = [ours(case, batch) for batch in batches]
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    results = []
    for _ in range(5):
        for turn, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results.append((turn % 2, ours(case, batches[turn % 2])))
    torch.cuda.synchronize()
    for which, one in results:
        for name, value in one.items():
            assert_same_bits(value, expected[which][name])


@pytest.mark.parametrize("n_rows", [1, 3])
def test_a_million_columns(n_rows, device):
    case = Case(True, torch.float32, (n_rows, 1 << 20), "offset", bias=True)
    assert_case(case, case.tensors(device), batches=1)


@pytest.mark.parametrize("n_cols", [256, 4096, 1 << 20])
def test_every_way_to_launch_a_kernel(n_cols, device, monkeypatch):
    """From C, from Python, and through Triton's public interface, which has no clusters."""
    case = Case(True, BF16, (5, n_cols), bias=True, pre_bias=True, residual_dtype=torch.float32)
    tensors = case.tensors(device)
    assert native.load() is not None, native.reason()
    results = []
    with monkeypatch.context() as patched:
        for load, direct in ((native.load, True), (lambda: None, True), (lambda: None, False)):
            patched.setattr(native, "load", load)
            patched.setattr(launcher, "DIRECT", direct)
            execute._forget()
            # The first call of a kind goes through Python in every case.
            results += [ours(case, tensors), ours(case, tensors)]
    execute._forget()
    for name, value in results[0].items():
        for other in results[1:]:
            assert_same_bits(value, other[name])


def test_both_ways_to_launch_a_grid(device, monkeypatch):
    needs_a_grid()
    case = Case(True, BF16, (50, 262144), bias=True)
    tensors = case.tensors(device)
    results = []
    for direct in (True, False):
        monkeypatch.setattr(launcher, "DIRECT", direct)
        with launch.force(
            **GRID_SETTINGS, programs_per_sm=2
        ):  # forward is looped, because clusters can only be launched directly
            assert backward_plan(case, tensors).regime == "grid"
            results.append(ours(case, tensors))
    for name, value in results[0].items():
        assert_same_bits(value, results[1][name])


def test_several_streams(device):
    """A call reads what its stream wrote. The results have the same bits as on one stream."""
    case = Case(True, BF16, (512, 4096), bias=True)
    batches = [case.tensors(device) for _ in range(4)]
    expected = [ours(case, batch) for batch in batches]
    streams = [torch.cuda.Stream() for _ in batches]
    torch.cuda.synchronize()
    results = []
    for batch, stream in zip(batches, streams, strict=True):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(10_000_000)
            late = {name: None if t is None else t.clone() for name, t in batch.items()}
            results.append(ours(case, late))
    torch.cuda.synchronize()
    for one, other in zip(results, expected, strict=True):
        for name, value in one.items():
            assert_same_bits(value, other[name])


@pytest.mark.parametrize("narrow", [torch.float16, BF16], ids=str)
def test_fp64_with_16_bit_parameters_and_stream(narrow, device):
    """Triton's interpreter cannot convert fp64 to bf16."""
    case = Case(True, torch.float64, bias=True, parameter_dtype=narrow, residual_dtype=narrow)
    assert_case(case, case.tensors(device))


def test_misaligned_and_odd_rows(device):
    case = Case(True, BF16, (64, 1001), bias=True)
    tensors = case.tensors(device)
    for name in ("x", "dy"):
        room = torch.empty(64 * 1003 + 1, dtype=BF16, device=device)
        view = room[1:].view(64, 1003)[:, :1001]
        view.copy_(tensors[name])
        tensors[name] = view
    assert_case(case, tensors, batches=4)
    y, _ = call(case, tensors)
    assert y.is_contiguous()
