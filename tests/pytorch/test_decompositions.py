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
from support.cases import DTYPES, INPUTS, Case, call
from support.criterion import assert_case
from support.exported import CASES, F32, LLAMA, Norms, operators, outputs_of, rows_of
from support.operators import COLS, ROWS, same_bits
from support.torch_answers import torch_own

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

    def assert_close(self, results, batches=4):
        """y and h are as near to the oracle as those of the operators have to be. The gradients are PyTorch's."""
        by_case = outputs_of(results, self.tensors)
        for case, tensors, outputs in zip(self.cases, self.tensors, by_case, strict=True):
            results = torch_own(case, tensors) | outputs
            assert_case(case, tensors, results=results, batches=batches)

    def assert_rounds_twice(self, results):
        """y of ``LLAMA`` is that of ``rounding="llama"``, up to errors of fp32 before a rounding, not of ``"once"``."""
        where = next(
            i for i, one in enumerate(self.cases) if replace(one, shape=LLAMA.shape) == LLAMA
        )
        y, inputs = outputs_of(results, self.tensors)[where]["y"], self.tensors[where]
        different = {}
        for rounding in ("llama", "once"):
            program = replace(LLAMA, rounding=rounding).program
            expected = reference.forward(*(inputs[name] for name in INPUTS), program).y
            different[rounding] = (y != expected).float().mean().item()
        assert different["llama"] < 0.01
        assert different["once"] > 0.1


@pytest.fixture(scope="module")
def norms(device):
    torch.manual_seed(20)
    return Exported(CASES, device)


@pytest.fixture(scope="module")
def wide_norms(device):
    """Rows that torch.compile leaves to the operators, and a rounding that Inductor would leave out."""
    torch.manual_seed(20)
    shape = (1, inductor.MAX_COLS + 1)
    other = Case(True, F32, shape, residual_dtype=F32, bias=True)
    return Exported((replace(LLAMA, shape=shape), other), device)


def test_run_decompositions(norms):
    assert len(operators(norms.program)) == len(CASES)
    assert not operators(norms.decomposed)
    norms.assert_close(norms.decomposed.module()(*norms.rows))


def test_saved_program_runs_without_rownorm(norms, tmp_path):
    path = tmp_path / "norms.pt2"
    torch.export.save(norms.decomposed, path)
    results = exported.run_without_rownorm("torch.export.load(path).module()", path, norms.rows)
    same_bits(results, norms.decomposed.module()(*norms.rows))


def test_graph_of_aot_inductor(wide_norms):
    """The graph that AOTInductor generates code for. It ends there, because compiling that code takes 10 s and more."""
    found = []

    def stop(graph):
        found.append(operators(graph.owning_module))
        raise RuntimeError("stop")

    with (
        torch._inductor.config.patch(post_grad_custom_post_pass=stop),
        pytest.raises(Exception, match="stop"),
    ):
        torch._inductor.aoti_compile_and_package(wide_norms.program)
    assert found == [[]]


@pytest.mark.exhaustive
@pytest.mark.parametrize("which", ["norms", "wide_norms"])
def test_aot_inductor(which, request, tmp_path):
    norms, path = request.getfixturevalue(which), tmp_path / "norms.pt2"
    torch._inductor.aoti_compile_and_package(norms.program, package_path=str(path))
    results = exported.run_without_rownorm(
        "torch._inductor.aoti_load_package(path)", path, norms.rows
    )
    norms.assert_close(results)
    norms.assert_rounds_twice(results)


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
    norms.assert_rounds_twice(results)


@pytest.mark.exhaustive  # test_onnx exports the norms
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


@pytest.mark.parametrize(
    "cases", [CASES[-2:], pytest.param(CASES, marks=pytest.mark.exhaustive)], ids=["few", "all"]
)
def test_training_graphs(cases, device):
    """Forward and backward in one program have none of the operators, and the gradients of the oracle."""
    cases = [Exported.shaped(case, SHAPE) for case in cases]
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
        assert_case(case, one, results=torch_own(case, one) | found, batches=4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("center", [True, False], ids=["layer_norm", "rms_norm"])
def test_every_form(center, dtype, device):
    # Constants of ONNX are fp32, those of GELU, too, and ONNX Runtime has no erf in fp64.
    gelus = (None, "relu") if dtype == torch.float64 else ("gelu", "gelu_tanh")
    activations = (None, "relu", "silu", *gelus)
    forms = product(("once", "llama"), (None, dtype, F32), (None, F32))
    norms = Exported(
        [
            Case(
                center,
                dtype,
                residual_dtype=residual_dtype,
                rounding=rounding,
                out_dtype=out_dtype,
                activation=activations[i % 5],
                pre_bias=i % 2 == 0,
                weight=i % 5 > 0,
                bias=i % 3 > 0,
                weight_shift=float(i % 4 == 3),
                parameter_dtype=F32 if i % 3 == 2 else None,
                eps=2.0**-17,
            )
            for i, (rounding, residual_dtype, out_dtype) in enumerate(forms)
        ],
        device,
    )
    assert not operators(norms.decomposed)
    norms.assert_close(norms.decomposed.module()(*norms.rows), batches=48)
    onnx_runtime()
    program = torch.onnx.export(norms.program, dynamo=True, verbose=False)
    norms.assert_close(run_in_onnx_runtime(program, *norms.rows), batches=48)


class Strided(torch.nn.Module):
    def forward(self, x, residual):
        y, h = rownorm.add_layer_norm(x.transpose(0, 1), residual.transpose(0, 1))
        return y.view(-1), h.view(-1), rownorm.rms_norm(x.transpose(0, 1)).view(-1)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_results_are_contiguous(mode, device):
    """The rest of a program may view them. In inference mode, too, which skips autograd's registrations."""
    rows = tuple(torch.randn(ROWS, 2, COLS, device=device) for _ in range(2))
    with mode():
        program = torch.export.export(Strided(), rows).run_decompositions()
    assert not operators(program)
    torch.testing.assert_close(program.module()(*rows), Strided()(*rows))


def test_operators_can_be_kept(device):
    x = torch.randn(ROWS, COLS, device=device)
    program = torch.export.export(rownorm.nn.RMSNorm(COLS, device=device), (x,))
    table = torch.export.default_decompositions()
    table[torch.ops.rownorm.rms_norm.default] = lambda *args, **options: NotImplemented
    for kept in (program.run_decompositions({}), program.run_decompositions(table)):
        assert operators(kept) == ["rownorm.rms_norm.default"]
        same_bits(kept.module()(x), program.module()(x))
