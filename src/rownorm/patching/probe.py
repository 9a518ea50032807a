"""What a module computes, found by calling a copy of it.

The structure (mean or not, weight, bias, shift, eps) is found with fp32 tensors. The rounding is then found for each
pair of dtypes of x and weight. ``agreement`` has the limits. A form is taken if it is the only one that agrees.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..program import GATE_ACTIVATIONS, Program, Rounding
from .agreement import (
    AGREE,
    DISAGREE,
    expected_result,
    gate_of,
    llama_differs,
    program_of,
    rows_of,
    share_off,
)
from .candidates import Candidate, Known, LeftAlone, failed, is_norm_by_name, undisturbed
from .forms import DtypePair, Form, Structure

GRADIENT_TOLERANCE = 1e-4  # relative to the largest element, fp32
WIDTHS = (48, 40)  # of probes of a module that has neither a weight nor a width
TINY = 1e-15  # the magnitude of rows that show eps: their mean square is 1e-30
SEED = 20
ROUNDINGS: tuple[Rounding, ...] = ("once", "llama")  # the norm is one step: "each" is "once"
PLAIN = (int, float, str, bool, type(None), torch.dtype)  # attributes that are compared by value

PAIRS = (
    (torch.float32, torch.float32),  # first, because the structure is found with it
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
    (torch.float64, torch.float64),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.float32, torch.float16),
)


class Prober:
    """Finds forms. Modules of one class with equal attributes share one probe."""

    def __init__(self, model_dtype: torch.dtype) -> None:
        """model_dtype: of the rows that modules without vectors will get."""
        self._model_dtype = model_dtype
        self._known = Known()

    def form_of(self, candidate: Candidate) -> Form | None:
        """The form of a candidate; None for a module that is no norm. Raises LeftAlone with a reason for a norm."""
        with undisturbed(candidate.device):
            try:
                probe = Probe(candidate, self._model_dtype)
                form = self._known.once(_key(candidate), probe.form)
                Probe(candidate, self._model_dtype).check_own_vectors(form)
            except LeftAlone:
                if is_norm_by_name(candidate.module):
                    raise
                return None
        return form


class Probe:
    """Calls of one candidate with tensors of its width."""

    def __init__(self, candidate: Candidate, model_dtype: torch.dtype) -> None:
        self.candidate = candidate
        self.dtype = candidate.dtype or model_dtype
        self.generator = torch.Generator().manual_seed(SEED)

    def form(self) -> Form:
        """The one form that reproduces the candidate. Raises LeftAlone."""
        widths = self._widths()
        structure = self._structure(widths[0])
        keywords: dict[DtypePair, dict[str, Any]] = {}
        for pair in PAIRS if structure.has_vectors else [(x, None) for x, w in PAIRS if x == w]:
            program = self._program(structure, pair, widths)
            if program is not None:
                keywords[pair] = program.keywords()
        own = structure.pair(self.dtype)
        if own not in keywords:
            name = str(own[0]).removeprefix("torch.")
            raise LeftAlone(f"no form of the row program reproduces it in {name}")
        self._check_gradients(structure, widths[0])
        width = None if structure.has_vectors or len(widths) > 1 else widths[0]
        arguments = (self.candidate.argument, self.candidate.gate_argument)
        return Form(structure, *arguments, width, own, keywords)

    def check_own_vectors(self, form: Form) -> None:
        """Raise LeftAlone unless the form holds for the weights that the module has, in training and in evaluation."""
        tensors = {n: tensor.detach().clone() for n, tensor in self.candidate.tensors.items()}
        if any(type(tensor) is not Tensor or tensor.is_meta for tensor in tensors.values()):
            return  # sharded, or without data: only random weights can be tried
        width = form.width or self.candidate.width or WIDTHS[0]
        program = Program(form.structure.center, **form.keywords[form.own])
        for shape, training in itertools.product([(), (1,)], [True, False]):
            x = self._rows(width, form.structure.eps, form.own[0])
            x = x.reshape(*x.shape[:1], *shape, *x.shape[1:])
            y = self._call(x, tensors, training)
            if share_off(y, x, tensors, form.structure, program) > AGREE:
                raise LeftAlone(
                    "with its own weight it does not compute what it computes with random ones"
                )

    def _widths(self) -> list[int]:
        """The widths to probe: that of the vectors, or of an attribute, or two for a module that takes any."""
        if self.candidate.width is not None:
            return [self.candidate.width]
        accepted = [width for width in WIDTHS if self._accepts(width)]
        if len(accepted) == len(WIDTHS):
            return accepted
        for value in self.candidate.module.__dict__.values():
            sizes = value if isinstance(value, tuple | list | torch.Size) else (value,)
            width = sizes[-1] if len(sizes) == 1 else None
            if type(width) is int and 1 < width < 1 << 20 and self._accepts(width):
                return [width]
        raise LeftAlone("the width of its rows cannot be determined")

    def _accepts(self, width: int) -> bool:
        try:
            self._call(self._rows(width, 0.0, torch.float32), {})
        except LeftAlone:
            return False
        return True

    def _structure(self, width: int) -> Structure:
        """The one structure that gives the candidate's fp32 results."""
        tensors = self._random_vectors(width, torch.float32)
        shares: dict[Structure, float] = {}
        undetermined = None
        for structure in self._structures():
            eps = self._eps(structure, width)
            if eps is None:
                continue
            structure = structure._replace(eps=eps[1])
            program = program_of(structure, "once", torch.float32)
            x = self._rows(width, eps[1], torch.float32)
            share = share_off(self._call(x, tensors), x, tensors, structure, program)
            if eps[0]:
                shares[structure] = share
            elif share <= AGREE:
                undetermined = eps[1]
        found = [structure for structure, share in shares.items() if share <= AGREE]
        if not found and undetermined is not None:
            raise LeftAlone(f"its eps cannot be determined; it acts like {undetermined:.4g}")
        if not found:
            raise LeftAlone("no form of the row program reproduces it")
        if len(found) > 1 or sum(share < DISAGREE for share in shares.values()) > 1:
            raise LeftAlone("several forms of the row program reproduce it")
        return found[0]

    def _structures(self) -> Iterator[Structure]:
        """Every structure that is possible with the vectors of the candidate, without eps. They may be unused."""
        names = [None, *self.candidate.tensors]
        roles = [(w, b) for w, b in itertools.product(names, names) if w is None or w != b]
        for center, (weight, bias), shift in itertools.product((False, True), roles, (0.0, 1.0)):
            if weight is not None or not shift:
                plain = Structure(center, weight, bias, shift)
                yield from self._gated(plain) if self.candidate.gate_argument else (plain,)

    def _gated(self, plain: Structure) -> Iterator[Structure]:
        """A structure with every gate, over the row and over groups whose size or number an attribute has."""
        width = self.candidate.width or 0
        sizes = {
            size
            for value in self.candidate.module.__dict__.values()
            if type(value) is int and 1 < value < width and width % value == 0
            for size in (value, width // value)
        }
        for activation, first, group_cols in itertools.product(
            (None, *GATE_ACTIVATIONS), (False, True), (None, *sorted(sizes))
        ):
            yield plain._replace(
                is_gated=True,
                gate_activation=activation,
                gate_first=first,
                group_cols=group_cols,
            )

    def _eps(self, structure: Structure, width: int) -> tuple[bool, float] | None:
        """(whether eps is a known number, eps), measured with rows so small that eps decides; None if not possible.

        There ``y = (x - mu) * scale / sqrt(variance + eps)``, and least squares give the root. A known number is
        an attribute of the module, a number with at most two digits, the machine epsilon of fp32, or 0.
        """
        tensors = self._random_vectors(width, torch.float32)
        if structure.bias is not None:
            tensors[structure.bias] = torch.zeros_like(tensors[structure.bias])
        x = TINY * self._rows(width, 0.0, torch.float32, magnitudes=(1.0,))
        y = self._call(x, tensors).double()
        rows = rows_of(x.double(), tensors, structure)
        variance, scaled = rows.variance, rows.deviation * rows.factor
        y = y.reshape(scaled.shape)
        rstd = (scaled * y).sum(-1, keepdim=True) / scaled.square().sum(-1, keepdim=True)
        each = 1 / rstd.square() - variance
        eps = each.median().item()
        if not math.isfinite(eps) or rstd.min() <= 0:
            return None
        if abs(eps) < 1e-4 * variance.max().item():
            return True, 0.0
        if eps < 0:
            return None
        attributes = [v for v in self.candidate.module.__dict__.values() if isinstance(v, float)]
        numbers = [*attributes, float(f"{eps:.1e}"), torch.finfo(torch.float32).eps]
        near = [number for number in numbers if abs(number - eps) < 1e-5 * eps]
        return (True, near[0]) if near else (False, eps)

    def _program(self, structure: Structure, pair: DtypePair, widths: list[int]) -> Program | None:
        """The one program that reproduces the candidate for this pair of dtypes, at all widths, or None."""
        found = {self._program_at(structure, pair, width) for width in widths}
        return found.pop() if len(found) == 1 else None

    def _program_at(self, structure: Structure, pair: DtypePair, width: int) -> Program | None:
        x = self._rows(width, structure.eps, pair[0])
        tensors = self._random_vectors(width, pair[1] or torch.float32)
        try:
            y = self._call(x, tensors)
        except LeftAlone:
            return None
        shares = {}
        for rounding in ROUNDINGS:
            program = program_of(structure, rounding, y.dtype)
            if rounding == "llama" and not llama_differs(structure, pair[0], y.dtype):
                continue
            if y.dtype == torch.float64 and pair[0] != torch.float64:
                continue  # rownorm refuses it
            shares[program] = share_off(y, x, tensors, structure, program)
        found = [program for program, share in shares.items() if share <= AGREE]
        others = [share for program, share in shares.items() if program not in found]
        return found[0] if len(found) == 1 and all(one >= DISAGREE for one in others) else None

    def _check_gradients(self, structure: Structure, width: int) -> None:
        """Raise LeftAlone if the gradients are not those of the form, for example with a detached rstd."""
        program = program_of(structure, "once", torch.float32)
        x = self._rows(width, 0.0, torch.float32, magnitudes=(1.0,))
        tensors = self._random_vectors(width, torch.float32)
        dy = self._random((*x.shape,)).to(x.device)

        def own(leaf: Tensor, leaves: dict[str, Tensor], gate: Tensor | None) -> Tensor:
            return self._call(leaf, leaves, gate=gate)

        def form(leaf: Tensor, leaves: dict[str, Tensor], gate: Tensor | None) -> Tensor:
            return expected_result(leaf, leaves, structure, program, gate)

        gradients = []
        for forward in (own, form):
            leaf = x.clone().requires_grad_()
            gate = gate_of(x).requires_grad_() if structure.is_gated else None
            leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
            with torch.enable_grad():
                y = forward(leaf, leaves, gate)
                if not y.requires_grad:
                    raise LeftAlone("its result has no gradient")
                inputs = [leaf, *leaves.values(), *([] if gate is None else [gate])]
                gradients.append(torch.autograd.grad(y, inputs, dy, allow_unused=True))
        for mine, expected in zip(*gradients, strict=True):
            if mine is None and expected is None:
                continue
            if mine is None or expected is None:
                raise LeftAlone("one of its parameters gets no gradient")
            if (mine - expected).abs().max() > GRADIENT_TOLERANCE * expected.abs().max():
                raise LeftAlone("its gradients are not those of the row program")

    def _call(
        self,
        x: Tensor,
        tensors: dict[str, Tensor],
        training: bool | None = None,
        gate: Tensor | None = None,
    ) -> Tensor:
        """The result of the candidate's forward. Raises LeftAlone if it fails or is not of the shape of x.

        gate: of a candidate that takes one, if it is not ``gate_of(x)``.
        """
        if training is None:
            training = self.candidate.module.training
        stand_in = self.candidate.stand_in(tensors, training)
        state, arguments = _state(stand_in), [x.clone()]
        if self.candidate.gate_argument:
            arguments.append((gate_of(x) if gate is None else gate).clone())
        versions = [t._version for t in arguments]
        try:
            y = type(stand_in).forward(stand_in, *arguments)
        except Exception as error:
            raise failed("a probe", error) from None
        if _state(stand_in) != state:
            raise LeftAlone("its forward changes its attributes or buffers")
        if [t._version for t in arguments] != versions:
            raise LeftAlone("its forward changes its input")
        if not isinstance(y, Tensor) or y.shape != x.shape or not y.is_floating_point():
            raise LeftAlone("its result is not a tensor of the shape of its input")
        return y

    def _random(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float32, device="cpu")

    def _random_vectors(self, width: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """Other vectors for the candidate, of both signs."""
        device = self.candidate.device
        return {
            name: (2 * self._random((width,))).to(device, dtype) for name in self.candidate.tensors
        }

    def _rows(
        self, width: int, eps: float, dtype: torch.dtype, magnitudes: tuple[float, ...] = ()
    ) -> Tensor:
        """(magnitudes, rows, width): rows with means apart from 0, some small enough for eps to matter."""
        if not magnitudes:
            root = math.sqrt(eps)
            near_eps = (0.1 * root, root, 4 * root) if root else ()
            magnitudes = (0.01, 1.0, 30.0, 3000.0, *near_eps)
        n_rows = 3 + 1024 // width
        n_rows += n_rows == width  # a norm over another dimension must not fit by accident
        count = len(magnitudes)
        rows = self._random((count, n_rows, width)) + self._random((count, n_rows, 1))
        scale = torch.tensor(magnitudes, dtype=torch.float32, device="cpu").reshape(-1, 1, 1)
        return (rows * scale).to(self.candidate.device, dtype)


def _state(module: nn.Module) -> dict[str, Any]:
    """What a forward with side effects changes: plain attributes, sizes of containers, versions of tensors."""
    state: dict[str, Any] = {}
    for name, value in {**module.__dict__, **module._parameters, **module._buffers}.items():
        if isinstance(value, Tensor):
            state[name] = value._version
        elif isinstance(value, dict | list | set):
            state[name] = len(value)
        else:
            state[name] = value if isinstance(value, PLAIN) else id(value)
    return state


def _key(candidate: Candidate) -> Any:
    """Equal for modules of one class with equal attributes. Other objects than numbers and words must be the same."""
    own = nn.Module().__dict__.keys()
    attributes = {
        (name, value if isinstance(value, PLAIN) else id(value))
        for name, value in candidate.module.__dict__.items()
        if name not in own
    }
    vectors = tuple((name, t.shape, t.dtype, t.device) for name, t in candidate.tensors.items())
    return type(candidate.module), candidate.module.training, vectors, frozenset(attributes)
