"""A dataset that FlashInfer itself applies, with FLASHINFER_TRACE_APPLY=1: written, and checked by its own loader.

FlashInfer replaces a call by the Solution whose Definition has the name that its trace template gives the call: a
prefix and the size of the second dimension. So names, arguments and outputs here are the templates' of version 0.7.2,
and there is one Solution for a Definition. Neither dtypes nor eps are part of the name, and eps is no argument of a
Solution, except of fused_rmsnorm_silu: a Solution has its own eps.

Left out are Definitions whose results are quantized: rownorm's kernels do not store fp8 or fp4, so a Solution would be
slower than FlashInfer's kernel.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from ..data.files import write_whole
from ..version import __version__

VERSION = "0.7.2"
INSTALL = f"pip install flashinfer-python=={VERSION}"
EPS = 1e-6
# Of FlashInfer-Bench's public dataset, of common models, and of the examples of the templates.
COLS = (128, 512, 768, 1536, 2048, 3072, 3584, 4096, 4608, 5120, 5376, 6144, 7168, 8192, 16384)
NOT_SERVED = (
    "rmsnorm_quant",
    "fused_add_rmsnorm_quant",
    "layernorm_quant",
    "rmsnorm_fp4quant",
    "add_rmsnorm_fp4quant",
)
ROWS = 3  # of a check
_OUTPUT: dict[str, str | None] = {"output": None}


class Form(NamedTuple):
    """A norm of FlashInfer, as its trace template describes it."""

    name: str  # of the function, and the prefix of Definitions
    arguments: dict[str, str]  # input of the Definition to argument of the function
    formula: str  # of y, from the fp32 tensors h, weight and bias
    outputs: Mapping[str, str | None] = _OUTPUT  # to the argument that is overwritten
    rows_axis: str = "batch_size"

    @property
    def is_in_place(self) -> bool:
        """Whether y and the sum overwrite the rows."""
        return "residual" in self.arguments

    @property
    def takes_eps(self) -> bool:
        """Whether FlashInfer passes the caller's eps."""
        return "eps" in self.arguments

    @property
    def x(self) -> str:
        """The input of rows."""
        return next(iter(self.arguments))


_X_WEIGHT = {"hidden_states": "input", "weight": "weight"}
_X_RESIDUAL_WEIGHT = {"hidden_states": "input", "residual": "residual", "weight": "weight"}
_RMS = "h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)"
_LAYER = "(h - h.mean(-1, keepdim=True)) * torch.rsqrt(h.var(-1, correction=0, keepdim=True) + eps)"
FORMS = {
    form.name: form
    for form in (
        Form("rmsnorm", _X_WEIGHT, f"{_RMS} * weight"),
        Form(
            "fused_add_rmsnorm",
            _X_RESIDUAL_WEIGHT,
            f"{_RMS} * weight",
            {"output": "input", "residual": "residual"},
        ),
        Form("gemma_rmsnorm", _X_WEIGHT, f"{_RMS} * (1 + weight)"),
        Form(
            "gemma_fused_add_rmsnorm",
            _X_RESIDUAL_WEIGHT,
            f"{_RMS} * (1 + weight)",
            {"output": None, "residual": None},
        ),
        Form(
            "layernorm",
            {"hidden_states": "input", "weight": "gemma", "bias": "beta"},
            f"{_LAYER} * weight + bias",
        ),
        Form(
            "fused_rmsnorm_silu",
            {"input": "input", "weight": "weight", "eps": "eps"},
            f"torch.nn.functional.silu({_RMS} * weight)",
            rows_axis="num_tokens",
        ),
    )
}


def eps_warning(eps: float) -> str:
    """What everybody who applies such a dataset has to know."""
    return (
        f"WARNING: FlashInfer does not pass the caller's eps to a Solution. These compute with eps {eps:g}, whatever "
        "eps the program asks for, and nothing says so at run time. Is your model's eps another one? Export with "
        "--eps. Does it have several? Do not apply this dataset. Only fused_rmsnorm_silu gets the caller's eps."
    )


def definition_of(form: Form, cols: int, eps: float) -> dict[str, Any]:
    """The Definition of a width. The dtypes are nominal: FlashInfer does not compare them."""
    of_weight = "float32" if form.name == "layernorm" else "bfloat16"
    inputs: dict[str, Any] = {
        name: {"shape": ["hidden_size"], "dtype": of_weight}
        if name in ("weight", "bias")
        else {"shape": [form.rows_axis, "hidden_size"], "dtype": "bfloat16"}
        for name in form.arguments
    }
    if form.takes_eps:
        inputs["eps"] = {"shape": None, "dtype": "float32", "optional": True}
    outputs: dict[str, Any] = {
        name: {"shape": [form.rows_axis, "hidden_size"], "dtype": "bfloat16"}
        | ({"param": argument} if argument else {})
        for name, argument in form.outputs.items()
    }
    return {
        "name": f"{form.name}_h{cols}",
        "description": f"flashinfer.{form.name} over rows of {cols} columns; {_eps_in_words(form, eps)}.",
        "op_type": "layernorm" if form.name == "layernorm" else "rmsnorm",
        "tags": [f"fi_api:flashinfer.norm.{form.name}"],
        "axes": {
            form.rows_axis: {"type": "var"},
            "hidden_size": {"type": "const", "value": cols},
        },
        "inputs": inputs,
        "outputs": outputs,
        "reference": _reference(form, eps),
    }


def _eps_in_words(form: Form, eps: float) -> str:
    return "eps is the caller's" if form.takes_eps else f"eps is {eps:g}, whatever the caller says"


def _reference(form: Form, eps: float) -> str:
    """The formula in fp32; each output is rounded once."""
    columns = [name for name in ("weight", "bias") if name in form.arguments]
    add = " + residual.float()" if form.is_in_place else ""
    lines = [f"h = {form.x}.float(){add}"]
    lines += [f"{name} = {name}.float()" for name in columns]
    lines += [f"y = ({form.formula}).to({form.x}.dtype)"]
    lines += [f"return y{f', h.to({form.x}.dtype)' if form.is_in_place else ''}"]
    arguments = [name for name in form.arguments if name != "eps"]
    body = "\n".join(f"    {line}" for line in lines)
    return f"import torch\n\n\ndef run({', '.join(arguments)}, eps={eps!r}):\n{body}\n"


def solution_of(form: Form, cols: int, eps: float) -> dict[str, Any]:
    """The one Solution of a Definition: a call of the installed rownorm.

    Functions that add cannot use destination passing: FlashInfer would pass ``residual`` twice. They write in place and
    return the same tensors, which FlashInfer then does not copy.
    """
    name = f"{form.name}_h{cols}"
    tensors = [one for one in form.arguments if one != "eps"]
    tensors += [] if form.is_in_place else ["output"]
    arguments = ", ".join(tensors)
    parameters = f"{arguments}, eps={eps!r}" if form.takes_eps else arguments
    value = "eps" if form.takes_eps else repr(eps)
    text = (
        f'"""{name} by rownorm {__version__}; {_eps_in_words(form, eps)}."""\n\n'
        f"from rownorm.integrations import flashinfer\n\n\n"
        f"def run({parameters}):\n    return flashinfer.{form.name}({arguments}, eps={value})\n"
    )
    return {
        "name": f"rownorm_{name}",
        "definition": name,
        "author": "rownorm",
        "description": f"Calls the installed rownorm; {_eps_in_words(form, eps)}.",
        "spec": {
            "language": "python",
            "target_hardware": ["cuda"],
            "entry_point": "main.py::run",
            "dependencies": ["rownorm"],
            "destination_passing_style": not form.is_in_place,
        },
        "sources": [{"path": "main.py", "content": text}],
    }


def write(folder: Path, cols: Sequence[int], eps: float) -> list[str]:
    """Write a new dataset; return the names of its Definitions."""
    names = []
    for form in FORMS.values():
        for width in cols:
            definition, solution = definition_of(form, width, eps), solution_of(form, width, eps)
            name = definition["name"]
            place = f"{definition['op_type']}/{name}"
            write_whole(folder / "definitions" / f"{place}.json", _text(definition))
            write_whole(
                folder / "solutions/rownorm" / place / f"{solution['name']}.json", _text(solution)
            )
            names.append(name)
    return names


def _text(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


class Applied(NamedTuple):
    """What FlashInfer did with one Solution."""

    name: str  # of the Definition
    status: Literal["applied", "not applied", "not called", "wrong"]
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.status}{f': {self.why}' if self.why else ''}"


def missing() -> str:
    """Why FlashInfer's loader cannot be asked; empty where it can."""
    return "" if importlib.util.find_spec("flashinfer") else f"flashinfer is missing; {INSTALL}"


def check(folder: Path, device: str) -> Iterator[Applied]:
    """Let FlashInfer load the folder and replace its norms, and call each; ValueError with what its loader says."""
    from flashinfer import trace_apply
    from flashinfer.trace_apply.config import PATH_ENV, load_config

    try:
        with mock.patch.dict(os.environ, {PATH_ENV: str(folder.absolute())}):
            names = sorted({definition for definition, _ in load_config(folder).solutions})
            trace_apply.enable_apply()
    except Exception as error:
        raise ValueError(
            f"FlashInfer refuses {folder}, and would apply nothing of it: {type(error).__name__}: {error}"
        ) from error
    files = (folder / "definitions").rglob("*.json")
    definitions = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    references = {one["name"]: one.get("reference", "") for one in definitions}
    try:
        with _no_capture():
            for name in names:
                yield _call(name, references[name], device)
    finally:
        trace_apply.disable_apply()


def _no_capture() -> contextlib.AbstractContextManager[Any]:
    """FlashInfer asks PyTorch whether a stream is captured, which raises in a build without CUDA."""
    if torch.cuda.is_available():
        return contextlib.nullcontext()
    return mock.patch("torch.cuda.is_current_stream_capturing", return_value=False)


def _call(name: str, reference: str, device: str) -> Applied:
    """Call the function of FlashInfer that this Definition stands for."""
    import flashinfer
    from flashinfer import trace_apply

    prefix, _, cols = name.rpartition("_h")
    form = FORMS.get(prefix)
    if form is None or not cols.isdigit():
        return Applied(name, "not called", "it is none of the norms that rownorm exports")
    tensors = _tensors(form, int(cols), device)
    options = {"eps": EPS} if form.takes_eps else {}
    namespace: dict[str, Any] = {}
    try:
        exec(reference, namespace)
        expected = namespace["run"](**tensors, **options)
    except Exception as error:
        return Applied(name, "wrong", f"its reference: {type(error).__name__}: {error}")
    api = f"flashinfer.norm.{prefix}"
    stats = trace_apply.stats().get(api, {})
    hits, errors = stats.get("hit", 0), stats.get("error", 0)
    failure = ""
    got: Any = None
    try:
        got = getattr(flashinfer, prefix)(
            **{form.arguments[one]: tensor for one, tensor in tensors.items()}, **options
        )
    except Exception as error:  # FlashInfer raises again what a Solution raises
        failure = f"{type(error).__name__}: {error}"
    stats = trace_apply.stats().get(api, {})
    if stats.get("error", 0) > errors:
        return Applied(name, "wrong", f"FlashInfer stops the program: {failure}")
    if stats.get("hit", 0) == hits:
        if form.is_in_place and not any(form.outputs.values()):
            why = f"FlashInfer {VERSION} keeps its own kernel: its template does not say where results are stored"
            return Applied(name, "not applied", why)
        return Applied(name, "wrong", "FlashInfer keeps its own kernel")
    results = (tensors[form.x], tensors["residual"]) if form.is_in_place else (got,)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    # References of FlashInfer's templates have no sum among their results.
    if not all(_close(one, other) for one, other in zip(results, wanted, strict=False)):
        return Applied(name, "wrong", "it differs from its reference")
    return Applied(name, "applied")


def _tensors(form: Form, cols: int, device: str) -> dict[str, Tensor]:
    """Random inputs; the rows are so small that a wrong eps is seen."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, spec in definition_of(form, cols, EPS)["inputs"].items():
        if spec["shape"] is not None:
            is_rows = len(spec["shape"]) == 2
            values = torch.randn((ROWS, cols) if is_rows else (cols,), generator=generator)
            values *= 1e-3 if is_rows else 1
            found[name] = values.to(device, getattr(torch, spec["dtype"]))
    return found


def _close(got: Tensor, wanted: Tensor) -> bool:
    """Equal up to two steps of bf16, at the size of the rows."""
    rtol = 2 * torch.finfo(torch.bfloat16).eps
    atol = rtol * wanted.float().square().mean().sqrt().item()
    same_form = (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    return same_form and torch.allclose(got.float(), wanted.float(), rtol, atol)
