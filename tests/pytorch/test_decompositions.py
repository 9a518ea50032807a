"""Exported programs become PyTorch's operators, and run where rownorm is not installed.

``run_decompositions``, ONNX Runtime and AOTInductor, with the numbers of the operators.
"""

from dataclasses import replace
from itertools import product

import pytest
import torch
import torch._inductor
from torch.export.experimental import _export_forward_backward

import rownorm
from rownorm import reference
from rownorm.ops import inductor
from support import exported, transformers_models
from support.cases import DTYPES, INPUTS, Case, call, ours
from support.criterion import assert_case
from support.exported import BF16, CASES, F32, Norms, operators, outputs_of, rows_of
from support.operators import COLS, ROWS, full_cases, same_bits

# Of torch, in its exporter to ONNX and in AOTInductor.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SHAPE, OTHER_SHAPE = (2, 3), (4, 5)  # batch and sequence, as exported and as run


class Exported:
    """Cases as one exported program, with rows of another batch and sequence length."""

    def __init__(self, cases, device):
        examples = [self.shaped(case, SHAPE).tensors(device) for case in cases]
        self.cases = [self.shaped(case, OTHER_SHAPE) for case in cases]
        self.tensors = [case.tensors(device) for case in self.cases]
        self.rows = rows_of(self.tensors)
        self.program = exported.export(Norms(cases, self.tensors), rows_of(examples))
        self.decomposed = self.program.run_decompositions()

    @staticmethod
    def shaped(case, shape):
        return replace(case, shape=(*shape, case.shape[-1]))

    def save(self, path):
        torch.export.save(self.decomposed, path)
        return path

    def compile(self, path):
        """A package of AOTInductor. Its host code is not optimized, because that takes most of the time."""
        settings = {"aot_inductor.compile_wrapper_opt_level": "O0"}
        torch._inductor.aoti_compile_and_package(
            self.program, package_path=str(path), inductor_configs=settings
        )
        return path

    def assert_close(self, results):
        """y and h are as near to the oracle as those of the operators have to be."""
        by_case = outputs_of(results, self.tensors)
        for case, tensors, outputs in zip(self.cases, self.tensors, by_case, strict=True):
            assert_case(case, tensors, results=ours(case, tensors) | outputs, batches=4)


@pytest.fixture(scope="module")
def norms(device):
    torch.manual_seed(20)
    return Exported(CASES, device)


@pytest.fixture(scope="module")
def wide_norms(device):
    """Rows that torch.compile leaves to the operators, and a rounding that Inductor would leave out."""
    torch.manual_seed(20)
    shape = (1, inductor.MAX_COLS + 1)
    llama = Case(False, BF16, shape, rounding="llama")
    return Exported((llama, Case(True, F32, shape, residual_dtype=F32, bias=True)), device)


def test_run_decompositions(norms):
    assert len(operators(norms.program)) == len(CASES)
    assert not operators(norms.decomposed)
    norms.assert_close(norms.decomposed.module()(*norms.rows))


def test_programs_run_without_rownorm(norms, wide_norms, tmp_path):
    """A saved program, and a package of AOTInductor with wide rows."""
    saved, package = exported.run_without_rownorm(
        (norms.save(tmp_path / "saved.pt2"), norms.rows),
        (wide_norms.compile(tmp_path / "package.pt2"), wide_norms.rows),
    )
    same_bits(saved, norms.decomposed.module()(*norms.rows))
    wide_norms.assert_close(package)
    assert_rounds_twice(wide_norms.tensors[0], outputs_of(package, wide_norms.tensors)[0]["y"])


def assert_rounds_twice(tensors, y):
    """y is that of ``rounding="llama"``, up to errors of fp32 before a rounding. That of ``"once"`` differs."""
    different = {}
    for rounding in ("llama", "once"):
        program = Case(False, BF16, rounding=rounding).program
        expected = reference.forward(*(tensors[name] for name in INPUTS), program).y
        different[rounding] = (y != expected).float().mean().item()
    assert different["llama"] < 0.01
    assert different["once"] > 0.1


@pytest.mark.exhaustive
def test_aot_inductor(norms, tmp_path):
    path = norms.compile(tmp_path / "package.pt2")
    norms.assert_close(exported.run_without_rownorm((path, norms.rows))[0])


def onnx_runtime():
    """The package, or a skip that says what is missing. torch's exporter needs onnx and onnxscript."""
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name, reason=f"needs {name}: pip install {name}")
    return pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install onnxruntime")


def run_in_onnx_runtime(program, *inputs):
    """The results of an ONNX program. An operator of rownorm would be an error when the session is made."""
    session = onnx_runtime().InferenceSession(
        program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [one.name for one in session.get_inputs()]
    arrays = {name: t.cpu().numpy() for name, t in zip(names, inputs, strict=True)}
    results = session.run(None, arrays)
    return tuple(torch.from_numpy(result).to(inputs[0].device) for result in results)


def test_onnx(norms):
    onnx_runtime()
    program = torch.onnx.export(norms.program, dynamo=True, verbose=False)
    results = run_in_onnx_runtime(program, *norms.rows)
    norms.assert_close(results)
    llama = next(i for i, case in enumerate(CASES) if case.rounding == "llama")
    assert CASES[llama] == Case(False, BF16, rounding="llama")
    assert_rounds_twice(norms.tensors[llama], outputs_of(results, norms.tensors)[llama]["y"])


def test_patched_model_in_onnx_runtime():
    """A Llama of transformers with rownorm's norms and residual adds."""
    onnx_runtime()
    model = transformers_models.make("llama")
    report = rownorm.patch(model, fuse_residuals=True)
    assert len(report.swapped) == 5

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, tokens):
            return self.model(input_ids=tokens, use_cache=False).logits

    batch, sequence = torch.export.Dim("batch", min=1), torch.export.Dim("sequence", min=2, max=32)
    program = torch.onnx.export(
        Logits().eval(),
        (torch.randint(3, 64, SHAPE),),
        dynamic_shapes=({0: batch, 1: sequence},),
        dynamo=True,
        verbose=False,
    )
    tokens = torch.randint(3, 64, OTHER_SHAPE)
    (logits,) = run_in_onnx_runtime(program, tokens)
    torch.testing.assert_close(logits, Logits()(tokens).detach(), rtol=1e-5, atol=1e-5)


class Loss(torch.nn.Module):
    """A scalar whose gradients are those of the cases, with all inputs as parameters.

    Residuals are negated: torch cannot export a graph in which two parameters, x and residual, have the same gradient.
    """

    def __init__(self, cases, tensors):
        super().__init__()
        self.cases, self.constants = cases, tensors
        self.inputs = torch.nn.ModuleList(
            torch.nn.ParameterDict(
                {n: -one[n] if n == "residual" else one[n] for n in INPUTS if one[n] is not None}
            )
            for one in tensors
        )

    def forward(self):
        total = 0.0
        for case, inputs, constants in zip(self.cases, self.inputs, self.constants, strict=True):
            given = {n: inputs.get(n) for n in INPUTS}
            if "residual" in inputs:
                given["residual"] = -given["residual"]
            y, h = call(case, given)
            total = total + (y.double() * constants["dy"].double()).sum()
            total = total if h is None else total + (h.double() * constants["dh"].double()).sum()
        return total


def test_training_graphs(device):
    """Forward and backward in one program have none of the operators, and the gradients of the oracle."""
    cases = [Exported.shaped(case, SHAPE) for case in CASES]
    tensors = [case.tensors(device) for case in cases]
    program = torch.export.export(Loss(cases, tensors), ())
    joint = _export_forward_backward(program)
    assert not operators(joint)
    by_output = joint.graph_signature.backward_signature.gradients_to_parameters
    values = {**joint.state_dict, **joint.constants}
    inputs = [values[spec.target] for spec in joint.graph_signature.input_specs]
    outputs = torch.fx.Interpreter(joint.graph_module).run(*(t.detach() for t in inputs))
    names = [spec.arg.name for spec in joint.graph_signature.output_specs]
    gradients = {
        by_output[name]: gradient
        for name, gradient in zip(names, outputs, strict=True)
        if name in by_output
    }
    for i, (case, one) in enumerate(zip(cases, tensors, strict=True)):
        found = {f"d{n}": gradients[f"inputs.{i}.{n}"] for n in INPUTS if one[n] is not None}
        if "dresidual" in found:
            found["dresidual"] = -found["dresidual"]
        assert_case(case, one, results=ours(case, one) | found, batches=4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
def test_every_form(center, dtype, device):
    forms = product(("once", "llama"), (None, dtype, F32), (None, F32), range(5))
    norms = Exported(
        [
            Case(
                center,
                dtype,
                residual_dtype=residual_dtype,
                rounding=rounding,
                out_dtype=out_dtype,
                activation=(None, "relu", "silu", "gelu", "gelu_tanh")[i],
                pre_bias=i % 2 == 0,
                weight=i > 0,
                bias=i > 1,
                weight_shift=float(i == 3),
                parameter_dtype=F32 if i == 4 else None,
                eps=2.0**-17,
            )
            for rounding, residual_dtype, out_dtype, i in forms
        ],
        device,
    )
    assert not operators(norms.decomposed)
    norms.assert_close(norms.decomposed.module()(*norms.rows))
    onnx_runtime()
    program = torch.onnx.export(norms.program, dynamo=True, verbose=False)
    norms.assert_close(run_in_onnx_runtime(program, *norms.rows))


class Strided(torch.nn.Module):
    def forward(self, x, residual):
        y, h = rownorm.add_layer_norm(x.transpose(0, 1), residual.transpose(0, 1))
        return y.view(-1), h.view(-1), rownorm.rms_norm(x.transpose(0, 1)).view(-1)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_results_are_contiguous(mode, device):
    """The rest of a program may view them. In inference mode, too, which skips autograd's registrations."""
    rows = tuple(torch.randn(ROWS, 2, COLS, device=device) for _ in range(2))
    with mode():
        program = torch.export.export(Strided(), rows).run_decompositions()
    assert not operators(program)
    torch.testing.assert_close(program.module()(*rows), Strided()(*rows))


@full_cases
def test_operators_can_be_kept(case, device):
    class Norm(torch.nn.Module):
        def forward(self, *inputs):
            return case.positional(*inputs)

    name, inputs = f"rownorm.{case.operator}.default", tuple(case.tensors(device).values())
    program = torch.export.export(Norm(), inputs)
    table = torch.export.default_decompositions()
    table[getattr(torch.ops.rownorm, case.operator).default] = lambda *_, **__: NotImplemented
    for kept in (program.run_decompositions({}), program.run_decompositions(table)):
        assert operators(kept) == [name]
        same_bits(kept.module()(*inputs), Norm()(*inputs))
