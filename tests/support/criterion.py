"""The one criterion by which results are judged: at every element

|ours - oracle| <= 1.25 * (PyTorch's largest error) + one rounding to the output dtype
"""

import functools

import numpy as np
import torch

from support.cases import Case, ours
from support.oracle import exact, oracle
from support.rounding import one_rounding
from support.torch_answers import torch_own


def errors(values: torch.Tensor, truth: np.ndarray) -> np.ndarray:
    """|values - truth|; an infinity or NaN where the truth is finite is an infinite error."""
    values = exact(values)
    with np.errstate(invalid="ignore"):
        difference = np.abs(values - truth)
    return np.where(np.isfinite(values), difference, np.inf)


def largest_errors(by_torch: dict, truth: dict) -> dict[str, float]:
    """PyTorch's largest error by output. Elements that PyTorch cannot compute do not count."""
    return {
        name: np.where(
            compared(by_torch[name], truth[name]), errors(by_torch[name], truth[name]), 0
        ).max(initial=0)
        for name in truth
    }


def compared(by_torch: torch.Tensor, truth: np.ndarray) -> np.ndarray:
    """The elements that are compared: finite in the output dtype and in PyTorch's result."""
    representable = np.abs(truth) <= torch.finfo(by_torch.dtype).max
    return representable & np.isfinite(exact(by_torch))


def assert_case(
    case: Case, tensors: dict, *, results: dict | None = None, batches: int = 48
) -> None:
    """Assert the criterion for every output and gradient of a case.

    results: what is judged; None computes it here. PyTorch's largest error on one batch varies by half from seed
    to seed, so it is taken over these tensors and ``batches`` further draws of the same case, and over eight times as
    many before a result is refused: the suite has thousands of results, and so the largest error of thousands. What
    fewer draws allow, more of them allow too, and most results need none: so it begins with few.
    """
    results = ours(case, tensors) if results is None else results
    truth = oracle(case, tensors)
    _assert_close(case, results, tensors, truth, tuple(truth), batches)
    if case.residual_dtype is not None:  # the norm reads the residual stream before it is rounded
        _assert_close(case, results, tensors, truth, ("y", "h"), batches, h_rounded=False)


def _assert_close(case, results, tensors, truths: dict, names: tuple, batches: int, **how) -> None:
    by_torch = torch_own(case, tensors, **how)
    here = largest_errors(by_torch, truths)
    assert results.keys() == truths.keys()
    for name in names:
        value, own, truth = results[name], by_torch[name], truths[name]
        assert value.dtype == own.dtype, f"{name}: {value.dtype}, PyTorch gives {own.dtype}"
        assert value.shape == own.shape, f"{name}: {value.shape}, PyTorch gives {own.shape}"
        error = np.where(compared(own, truth), errors(value, truth), 0)
        rounding = one_rounding(truth, value.dtype)
        for draws in (0, batches // 8, batches, 8 * batches):
            elsewhere = errors_of_torch(case, tensors["x"].device, draws, **how) if draws else {}
            torch_error = max(here[name], elsewhere.get(name, 0))
            allowed = 1.25 * torch_error + rounding
            if (error <= allowed).all():
                break
        worst = np.unravel_index(np.argmax(error - allowed), error.shape) if error.size else ()
        assert (error <= allowed).all(), (
            f"{name}{[int(i) for i in worst]}: {float(exact(value)[worst])}, should be "
            f"{float(truth[worst])}; error {float(error[worst]):.3g}, allowed "
            f"{float(allowed[worst]):.3g}, PyTorch's largest {float(torch_error):.3g}"
        )


@functools.cache
def errors_of_torch(case: Case, device: torch.device, batches: int, **how) -> dict[str, float]:
    """PyTorch's largest error, by output, on so many batches of a case. Computed once for all regimes.

    A larger number begins with the batches of a smaller one.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(21)
        drawn = [case.tensors(device) for _ in range(batches)]
    largest = [largest_errors(torch_own(case, one, **how), oracle(case, one)) for one in drawn]
    return {name: max(batch[name] for batch in largest) for name in (largest[0] if largest else ())}


def assert_gradients_at_stored_h(dtype: torch.dtype, n_cols: int, device, **options):
    """LayerNorm's gradients are those at the stored ``h``, because backward reads nothing else.

    It shows in rows of a 16-bit residual stream that vary less than their rounding.
    """
    case = Case(True, dtype, (6, n_cols), residual_dtype=dtype, **options)
    tensors = case.tensors(device)
    spacing = 16 * torch.finfo(dtype).eps  # of adjacent numbers from 16 to 32
    tensors["dh"] = torch.zeros_like(tensors["dh"])
    tensors["x"][:2] = 20
    tensors["residual"][0] = 0.4 * spacing  # constant before and after rounding
    few = torch.arange(n_cols, device=device) % 7 == 3
    tensors["residual"][1] = torch.where(few, 0.6 * spacing, 0.4 * spacing)
    tensors["x"][2] = 20 + 4 * spacing * tensors["x"][2]
    tensors["x"][3] = 1000 + 10 * tensors["x"][3]
    tensors["x"][4] = 1e7 if dtype == torch.bfloat16 else 6e4  # the residual is lost in rounding
    results = ours(case, tensors)

    h, weight = (t.double().requires_grad_() for t in (results["h"], tensors["weight"]))
    dy, eps = tensors["dy"].double(), case.program.eps
    torch.layer_norm(h, (n_cols,), weight, None, eps).backward(dy)
    g = (dy * weight).detach().abs().amax(1, keepdim=True)
    rstd = (h.detach().var(1, keepdim=True, correction=0) + eps).rsqrt()
    assert ((results["dx"] - h.grad).abs() <= 2.0**-6 * rstd * g).all()
    assert ((results["dweight"] - weight.grad).abs() <= 2.0**-6 * dy.abs().sum(0)).all()


def assert_same_bits(a: torch.Tensor | None, b: torch.Tensor | None) -> None:
    if a is None or b is None:
        assert a is b
        return
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    different = a.contiguous().view(bits) != b.contiguous().view(bits)
    assert not different.any(), f"{int(different.sum())} of {different.numel()} elements differ"
