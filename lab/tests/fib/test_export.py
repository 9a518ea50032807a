"""Exports: what FlashInfer-Bench's own classes, loader and command line make of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from flashinfer_bench import Definition, TraceSet
from flashinfer_bench.cli import main

import rownorm
from lab_support.fib import add_traces, export
from lab_support.lab_commands import invoke
from rownorm_lab.data.case import OPERATIONS
from rownorm_lab.fib import bundle
from rownorm_lab.fib.definition import BATCHES
from rownorm_lab.fib.recognize import NotServed, recognize
from support.regimes import REGIMES, forced

# Builds a Solution and runs it where rownorm cannot be imported; prints the largest error and the modules.
WITHOUT_ROWNORM = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0].startswith("rownorm"):
            raise ModuleNotFoundError(f"{name} is not installed")
sys.meta_path.insert(0, Block())
import torch
from flashinfer_bench import TraceSet
from flashinfer_bench.compile import BuilderRegistry
content = TraceSet.from_path(sys.argv[1])
definition = content.definitions["add_rmsnorm_d96"]
solution = content.get_solution("rownorm_add_rmsnorm_d96")
device = "cuda" if torch.cuda.is_available() else "cpu"
x, residual = torch.randn(2, 5, 96, device=device).half()
weight = torch.randn(96, device=device).half()
run = BuilderRegistry.get_instance().build(definition, solution)
y, h = run.call_value_returning(x, residual, weight, 1e-6)
total = x.float() + residual.float()
expected = torch.nn.functional.rms_norm(total, (96,), weight.float(), 1e-6)
assert torch.equal(h, total.half())
print((y.float() - expected).abs().max().item(), any(m.split(".")[0] == "rownorm" for m in sys.modules))
"""


def upstream(monkeypatch, *arguments):
    """FlashInfer-Bench's own command line."""
    monkeypatch.setattr(sys, "argv", ["flashinfer-bench", *map(str, arguments)])
    main.cli()


def test_the_default_is_the_seed_s_definition(tmp_path):
    content = TraceSet.from_path(str(export(tmp_path / "seed", "--batch", "1,8,32,128,512")))
    (definition,) = content.definitions.values()
    assert definition.name == "rmsnorm_d4096"
    assert definition.op_type == "norm"
    assert {name: axis.type for name, axis in definition.axes.items()} == {
        "batch": "var",
        "hidden": "const",
    }
    assert definition.const_axes == {"hidden": 4096}
    described = {
        name: (spec.shape, spec.dtype.value)
        for name, spec in {**definition.inputs, **definition.outputs}.items()
    }
    assert described == {
        "x": (["batch", "hidden"], "float16"),
        "weight": (["hidden"], "float16"),
        "eps": (None, "float32"),
        "out": (["batch", "hidden"], "float16"),
    }
    workloads = [one.workload for one in content.workloads["rmsnorm_d4096"]]
    assert [one.axes["batch"] for one in workloads] == list(BATCHES)
    assert {one.inputs["eps"].value for one in workloads} == {1e-6}
    assert {one.name: one.author for one in content.solutions["rmsnorm_d4096"]} == {
        "rownorm_rmsnorm_d4096": "rownorm",
        "rownorm_package_rmsnorm_d4096": "rownorm",
        "torch_rmsnorm_d4096": "baseline",
    }


def test_public_names(tmp_path):
    options = ("--convention", "public", "--op", "rms_norm,add_rms_norm", "--cols", "4096,3584")
    content = TraceSet.from_path(str(export(tmp_path / "public", *options)))
    assert set(content.definitions) == {
        f"{name}_h{cols}" for name in ("rmsnorm", "fused_add_rmsnorm") for cols in (4096, 3584)
    }
    found = content.definitions["fused_add_rmsnorm_h4096"]
    assert found.op_type == "rmsnorm"
    assert list(found.inputs) == ["hidden_states", "residual", "weight"]
    assert list(found.outputs) == ["output"]
    assert list(found.axes) == ["batch_size", "hidden_size"]
    assert recognize(found).eps == 1e-5
    assert recognize(content.definitions["rmsnorm_h3584"]).eps == 1e-6


@pytest.mark.parametrize("convention", ["course", "public"])
def test_every_operation_and_dtype_is_recognized(tmp_path, convention):
    options = ("--op", ",".join(OPERATIONS), "--dtype", "fp16,bf16,fp32")
    folder = export(
        tmp_path / "all", "--convention", convention, *options, "--cols", 48, "--eps", "1e-6"
    )
    content = TraceSet.from_path(str(folder))
    assert len(content.definitions) == 12
    for name, definition in content.definitions.items():
        norm = recognize(definition)
        assert norm.operation.startswith("add_") == ("add" in name)
        assert norm.centers == ("layer" in name)
        assert norm.eps == (None if convention == "course" else 1e-6)


def definition_with(reference, **inputs):
    shapes = {"x": ["n", "m"], "weight": ["m"], **inputs}
    return Definition.model_validate(
        {
            "name": "mine",
            "op_type": "norm",
            "axes": {"n": {"type": "var"}, "m": {"type": "const", "value": 32}},
            "inputs": {
                name: {"shape": shape, "dtype": "float32"} for name, shape in shapes.items()
            },
            "outputs": {"y": {"shape": ["n", "m"], "dtype": "float32"}},
            "reference": f"import torch\ndef run({', '.join(shapes)}):\n    {reference}\n",
        }
    )


def test_the_reference_decides_what_a_definition_computes():
    rms = "(x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()"
    norm = recognize(definition_with(f"return x * {rms} * (weight + 1)"))
    assert (norm.operation, norm.eps, norm.weight_shift) == ("rms_norm", 1e-5, 1.0)
    for reference, why in (
        (f"return x * {rms} * weight * 1.01", "no norm that rownorm has"),
        ("return x * weight", "no norm that rownorm has"),
        ("return missing", "does not run on a CPU"),
    ):
        with pytest.raises(NotServed, match=why):
            recognize(definition_with(reference))
    with pytest.raises(NotServed, match="cannot be told apart"):
        recognize(definition_with("return x", other=["n", "m"]))


def test_the_self_contained_solution_runs_without_rownorm(tmp_path):
    folder = export(tmp_path / "data", "--op", "add_rms_norm", "--cols", 96, "--batch", 1)
    (tmp_path / "elsewhere").mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    packages = [path for path in sys.path if "site" in path]
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_ROWNORM, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path / "elsewhere",
        env=environment | {"PYTHONPATH": os.pathsep.join(packages)},
    )
    assert ran.returncode == 0, ran.stderr
    error, imported = ran.stdout.split()
    assert imported == "False"
    assert float(error) < 4e-3  # one rounding to fp16 of values of up to 8


def test_the_bundle_is_the_library_s_own_files_and_no_more():
    files = bundle.sources()
    root = Path(rownorm.__file__).parent
    for path in ("ops/into.py", "launch/forward.py", "kernels/forward/resident.py"):
        assert files[path] == (root / path).read_text()
    assert "launch/planning/tables/sm_90.json" in files
    assert "launch/native/launch.c" in files
    python = [path for path in files if path.endswith(".py")]  # the C of the launches comes whole
    assert not [path for path in python if "backward" in path or path.startswith("nn")]
    assert "import" not in files["__init__.py"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CPU without the interpreter")
def test_on_a_cpu_the_self_contained_solution_takes_pytorch(monkeypatch):
    from rownorm.ops import into

    monkeypatch.setattr(into, "INTERPRETING", False)
    monkeypatch.setattr(into, "_prepared", {})
    x, weight = torch.randn(3, 40), torch.randn(40)
    y = torch.empty(3, 80)[:, ::2]
    into.norm_into((x, None, weight, None, y, None), (False, 1e-6))
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (40,), weight, 1e-6))


@pytest.mark.parametrize("regime", [name for name in REGIMES if name != "grid"])
@pytest.mark.parametrize("returns_h", [True, False])
def test_every_regime_stores_what_the_library_returns(device, monkeypatch, regime, returns_h):
    from rownorm.ops import into

    monkeypatch.setattr(into, "_prepared", {})
    x, residual = torch.randn(2, 3, 100, device=device).half()
    weight, bias = torch.randn(2, 100, device=device).half()
    y, h = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan) if returns_h else None
    with forced(regime):
        expected, total = rownorm.add_layer_norm(x, residual, weight, bias, eps=1e-5)
        for _ in range(2):  # prepared, then found
            into.norm_into((x, residual, weight, bias, y, h), (True, 1e-5))
    assert torch.equal(y, expected)
    assert h is None or torch.equal(h, total)
    assert len(into._prepared) == 1


def test_layouts_that_kernels_cannot_use_are_copied(device):
    from rownorm.ops.into import norm_into

    x, weight = torch.randn(40, 3, device=device).T, torch.randn(80, device=device)[::2]
    y = torch.empty(3, 80, device=device)[:, ::2]
    norm_into((x, None, weight, None, y, None), (False, 1e-6))
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (40,), weight, 1e-6))


def test_upstream_s_command_line_reads_the_folder(tmp_path, monkeypatch):
    folder = add_traces(export(tmp_path / "data"))
    printed = []
    monkeypatch.setattr(main, "cli_config_logging", lambda options: None)
    monkeypatch.setattr(main.logger, "info", lambda text, *values: printed.append(text % values))
    upstream(monkeypatch, "report", "summary", "--local", folder)
    upstream(monkeypatch, "report", "best", "--local", folder)
    assert "'total': 6, 'passed': 6" in printed[0]
    assert "Solution: rownorm_" in printed[2]
    # 0.1.2 cannot merge anything: it asks a TraceSet for `workload`, which is called `workloads`.
    (tmp_path / "empty").mkdir()
    for local in (folder, tmp_path / "empty"):
        with pytest.raises(AttributeError, match="no attribute 'workload'"):
            upstream(monkeypatch, "report", "merge", "--local", local, "--output", tmp_path / "out")
    # With that name mended, it merges the folder with an empty one.
    workload = property(lambda trace_set: trace_set.workloads)
    monkeypatch.setattr(TraceSet, "workload", workload, raising=False)
    locals_ = ("--local", folder, "--local", tmp_path / "empty")
    upstream(monkeypatch, "report", "merge", *locals_, "--output", tmp_path / "merged")
    # Its loader refuses what it wrote, because workloads lie among the traces. So the files are counted.
    merged = {file.name: file.read_text() for file in (tmp_path / "merged").rglob("*.json*")}
    assert "rmsnorm_d64.json" in merged
    assert len(merged["rmsnorm_d64.jsonl"].splitlines()) == 6


def test_an_export_overwrites_nothing(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").write_text("mine")
    ran = invoke("fib", "export", tmp_path / "data")
    assert ran.exit_code == 2
    assert "not empty" in ran.output
    for options in (("--cols", "0"), ("--cols", "wide"), ("--eps", "0"), ("--op", "softmax")):
        assert invoke("fib", "export", tmp_path / "new", *options).exit_code == 2
    assert not (tmp_path / "new").exists()


def test_serving_the_definitions_of_a_dataset(tmp_path):
    folder = export(tmp_path / "data", "--cols", 64, "--batch", 2)
    foreign = json.loads((folder / "definitions/norm/rmsnorm_d64.json").read_text())
    foreign["name"] = "scaled"
    foreign["reference"] = "def run(x, weight, eps):\n    return x * weight\n"
    (folder / "definitions/norm/scaled.json").write_text(json.dumps(foreign))
    gone = folder / "solutions/rownorm/norm/rmsnorm_d64/rownorm_rmsnorm_d64.json"
    before = gone.read_text()
    gone.unlink()
    ran = invoke("fib", "export", folder, "--serve")
    assert ran.exit_code == 1
    assert "scaled: skipped: its reference computes no norm" in ran.output
    assert "1 Solution written, 2 kept, 1 Definition skipped" in ran.output
    assert gone.read_text() == before
    assert invoke("fib", "export", folder, "--serve", "--cols", 8).exit_code == 2


def test_a_missing_package_is_named_with_its_command(tmp_path, monkeypatch):
    from rownorm_lab.fib import package

    monkeypatch.setattr(package, "NEEDS", ("flashinfer_bench", "nothing_of_that_name"))
    ran = invoke("fib", "export", tmp_path / "data")
    assert ran.exit_code == 2
    assert "nothing_of_that_name is not installed; pip install 'rownorm-lab[fib]'" in ran.output
    assert "--no-deps flashinfer-bench==0.1.2" in package.state()
    assert not (tmp_path / "data").exists()


def test_info_shows_the_package():
    from rownorm_lab.fib import package

    assert package.state() == f"ready {package.VERSION}"
    pins = Path(__file__).parents[3] / "constraints" / "common.txt"
    assert f"flashinfer-bench=={package.VERSION}\n" in pins.read_text()


@pytest.mark.parametrize("options", [(), ("--for-flashinfer",)])
def test_a_folder_that_exists_is_named_as_it_was_given(tmp_path, options):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").touch()
    ran = invoke("fib", "export", "data", *options)
    assert ran.exit_code == 2
    assert "Invalid value for 'DIR': data exists and is not empty" in ran.output
    assert "--out" not in ran.output
