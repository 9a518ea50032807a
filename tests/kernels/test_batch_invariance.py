"""Kernels in the mode ``rownorm.batch_invariant``: a row has the same bits in any batch, bit for bit.

The interpreter adds up a row in the same order whatever its alignment. So beside the bits, the tests compare what the
kernels are compiled for: one kernel has one order.
"""

import itertools

import pytest
import torch

import rownorm
from rownorm.launch import launcher
from rownorm.ops import execute
from support.cases import Case, call, ours
from support.criterion import assert_same_bits
from support.regimes import ON_GPU, REGIMES, forced

BF16, F32 = torch.bfloat16, torch.float32
ROWS = ("x", "residual", "dy", "dh")
OF_ROWS = ("y", "h", "dx", "dresidual")
NORMS = pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
needs_gpu = pytest.mark.skipif(
    not ON_GPU, reason="needs a GPU: the interpreter has no layouts, and is too slow for these rows"
)

FORMS = {
    "plain": {},
    "one stream": {"residual_dtype": BF16},
    "wide stream": {"residual_dtype": F32},
    "pre_bias": {"pre_bias": True},
    "all": {"residual_dtype": F32, "pre_bias": True, "activation": "silu", "weight_shift": 1.0},
    "activation": {"activation": "gelu"},
    "llama": {"rounding": "llama"},
    "out_dtype": {"out_dtype": F32},
}


@pytest.fixture(autouse=True)
def mode():
    with rownorm.batch_invariant():
        yield


def case_of(center, n_rows, n_cols, dtype=BF16, **options) -> Case:
    return Case(center, dtype, (n_rows, n_cols), bias=center, **options)


def some(tensors: dict, rows, changed=lambda t: t) -> dict:
    """These rows of the tensors that have rows."""
    return {n: changed(t[rows]) if n in ROWS and t is not None else t for n, t in tensors.items()}


def assert_same_rows(results: dict, all_results: dict, rows) -> None:
    for name in OF_ROWS:
        if name in all_results:
            expected = all_results[name][rows]
            assert_same_bits(results[name].reshape(expected.shape), expected)


def at_an_offset(t, elements=1):
    """The same values at an address that is not a multiple of 16."""
    memory = torch.empty(t.numel() + elements, dtype=t.dtype, device=t.device)
    return memory[elements:].view(t.shape).copy_(t)


def with_padding(t, columns=1):
    """The same values in rows that are further apart."""
    memory = torch.empty(t.shape[0], t.shape[1] + columns, dtype=t.dtype, device=t.device)
    return memory[:, : t.shape[1]].copy_(t)


def transposed(t):
    """The same values with the columns far apart: the kernels read a copy."""
    return t.t().contiguous().t()


def in_groups(t):
    """The same values in groups of rows with gaps between them, as the heads of a projection."""
    if t.shape[0] % 2:
        return t
    memory = torch.empty(t.shape[0] // 2, 3, t.shape[1], dtype=t.dtype, device=t.device)
    return memory[:, :2].copy_(t.view(-1, 2, t.shape[1]))


LAYOUTS = {
    "offset": at_an_offset,
    "offset by 8 bytes": lambda t: at_an_offset(t, 8 // t.itemsize),
    "padding": with_padding,
    "padding by 16 columns": lambda t: with_padding(t, 16),
    "transposed": transposed,
    "groups": in_groups,
}


@NORMS
@pytest.mark.parametrize("regime", REGIMES)
def test_every_regime(regime, center, device):
    case = case_of(center, 6, 70, residual_dtype=F32)
    tensors = case.tensors(device)
    with forced(regime):
        together = ours(case, tensors)
        for rows in (slice(0, 1), slice(5, 6), slice(1, 4)):
            assert_same_rows(ours(case, some(tensors, rows)), together, rows)


@pytest.mark.parametrize("form", FORMS)
@NORMS
def test_every_form(center, form, device):
    case = case_of(center, 11, 48, **FORMS[form])
    tensors = case.tensors(device)
    together = ours(case, tensors)
    for rows in (slice(0, 1), slice(10, 11), slice(3, 8)):
        assert_same_rows(ours(case, some(tensors, rows)), together, rows)


def test_rows_that_are_divided_by_their_number_elsewhere(device):
    """Without the mode, one row has as many parts as there are chunks in the interpreter, and 5 rows have fewer."""
    case = case_of(True, 5, 20000, F32)
    tensors = case.tensors(device)
    together = ours(case, tensors)
    for n_rows in (1, 3):
        rows = slice(0, n_rows)
        assert_same_rows(ours(case, some(tensors, rows)), together, rows)


@pytest.fixture
def kernels(monkeypatch):
    """What every kernel is compiled for: its constants, its tensors' dtypes, and whether they are aligned."""
    compiled, bind = [], launcher.bind

    def record(call, roles, tensors, device):
        given = {
            role: (tensors[i].dtype, tensors[i].data_ptr() % 16 == 0)
            for role in call.roles
            if (i := roles.get(role, -1)) >= 0 and tensors[i] is not None
        }
        constants = str(call.ordered(call.constants))
        compiled.append((call.kernel.__name__, call.num_warps, constants, str(given)))
        return bind(call, roles, tensors, device)

    monkeypatch.setattr(launcher, "bind", record)
    execute._forget()
    yield compiled
    execute._forget()


@pytest.mark.parametrize(("n_cols", "residual_dtype"), [(48, None), (48, F32), (50, BF16)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_alignment_and_strides(layout, n_cols, residual_dtype, device, kernels):
    case = case_of(True, 6, n_cols, residual_dtype=residual_dtype, pre_bias=True)
    tensors = case.tensors(device)
    expected = ours(case, tensors)
    usual = set(kernels)
    for rows in (slice(0, 6), slice(2, 3)):
        other = some(tensors, rows, LAYOUTS[layout])
        other |= {n: at_an_offset(other[n]) for n in ("weight", "bias", "pre_bias")}
        results = ours(case, other)
        assert_same_rows(results, expected, rows)
    assert set(kernels) == usual, "one kernel for every layout and every number of rows"
    assert not any("False" in given for _, _, _, given in usual)


def test_training_and_inference_take_one_kernel(device, kernels):
    case = case_of(True, 3, 40, residual_dtype=BF16)
    tensors = case.tensors(device)
    y, h = call(case, tensors)
    with_gradient = ours(case, tensors)
    assert_same_bits(y, with_gradient["y"])
    assert_same_bits(h, with_gradient["h"])
    assert len({one for one in kernels if one[0].startswith("forward")}) == 1


def test_copies_are_not_made_of_what_the_kernels_read_alike(device, kernels, monkeypatch):
    """Rows in a wider tensor whose width is a multiple of 16: read in place."""
    x = torch.randn(5, 64, device=device)[:, :48]
    monkeypatch.setattr(torch.Tensor, "clone", None)
    monkeypatch.setattr(torch.Tensor, "contiguous", None)
    rownorm.rms_norm(x)
    assert len(kernels) == 1


def test_sums_over_rows_are_repeatable(device):
    case = case_of(True, 37, 64, pre_bias=True)
    tensors = case.tensors(device)
    first, again = ours(case, tensors), ours(case, tensors)
    for name in ("dweight", "dbias", "dpre_bias"):
        assert_same_bits(first[name], again[name])


# On a GPU: every regime at its real widths, around the numbers of rows that change something without the mode.

THRESHOLDS = (1, 2, 3, 7, 8, 9, 31, 33, 65, 131, 132, 133, 264, 265, 527, 528, 529)
WIDTHS = [64, 97, 192, 320, 384, 768, 1000, 1024, 2048, 4096, 4097, 5120, 8192]
NARROW = [(n_cols, "plain") for n_cols in WIDTHS]
NARROW += [(n_cols, form) for n_cols in (96, 1000, 5120) for form in FORMS if form != "plain"]
WIDE = [(n, BF16) for n in (12288, 16384, 20000, 32768, 65536, 131072, 131073, 262144, 300000)]
WIDE += [(n, dtype) for n in (20000, 65536) for dtype in (F32, torch.float64)]


def assert_rows_on_gpu(case: Case, counts) -> None:
    """The first and the last rows, in every number, and some rows in every layout."""
    tensors = case.tensors("cuda")
    tensors["x"][5] += 30  # a row far from 0, which is computed in more steps than the others
    n_rows = case.shape[0]
    together = ours(case, tensors)
    for n in counts:
        for rows in (slice(0, n), slice(n_rows - n, None)):
            assert_same_rows(ours(case, some(tensors, rows)), together, rows)
    for layout, rows in itertools.product(LAYOUTS, (slice(2, 6), slice(1, 2))):
        assert_same_rows(ours(case, some(tensors, rows, LAYOUTS[layout])), together, rows)


@needs_gpu
@pytest.mark.parametrize(("n_cols", "form"), NARROW)
@NORMS
def test_on_a_gpu(center, n_cols, form):
    assert_rows_on_gpu(case_of(center, 1061, n_cols, **FORMS[form]), THRESHOLDS)


@needs_gpu
@pytest.mark.parametrize(("n_cols", "dtype"), WIDE)
@NORMS
def test_wide_rows_on_a_gpu(center, n_cols, dtype):
    assert_rows_on_gpu(case_of(center, 270, n_cols, dtype), (1, 2, 17, 66, 132, 133, 265))


@needs_gpu
@pytest.mark.parametrize("n_cols", [131072, 300000])
@NORMS
def test_wide_rows_with_a_residual_on_a_gpu(center, n_cols):
    assert_rows_on_gpu(case_of(center, 140, n_cols, residual_dtype=F32), (1, 2, 17, 66, 132, 133))
