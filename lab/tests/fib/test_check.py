"""``rownorm fib check`` and bad datasets."""

import json

import pytest

from lab_support.fib import add_traces, evaluation, export
from lab_support.lab_commands import invoke
from rownorm_lab.fib.check import check
from rownorm_lab.fib.dataset import read


def change(folder, name, old, new):
    """Replace text in the source of a Solution."""
    (path,) = (folder / "solutions").rglob(f"{name}.json")
    solution = json.loads(path.read_text())
    for source in solution["sources"]:
        source["content"] = source["content"].replace(old, new)
    path.write_text(json.dumps(solution))


def test_every_solution_is_right_on_every_workload(tmp_path, device):
    options = ("--op", "rms_norm,add_layer_norm", "--dtype", "fp16,bf16", "--cols", 48)
    dataset = read(export(tmp_path / "data", *options, "--batch", "1,3"))
    assert not dataset.problems
    results = list(check(dataset, "cuda:0" if device == "cuda" else "cpu"))
    assert len(results) == 4 * 3 * 2
    assert [(one.status, one.upstream) for one in results] == [("ok", "PASSED")] * len(results)


def test_wrong_and_broken_solutions_are_named_and_the_rest_is_checked(tmp_path):
    folder = export(tmp_path / "data", "--cols", 64, "--batch", 2)
    change(folder, "rownorm_package_rmsnorm_d64", "eps=eps)", "eps=eps) * 1.004")
    change(folder, "torch_rmsnorm_d64", "import torch", "import nothing_of_that_name")
    ran = invoke("fib", "check", folder)
    assert ran.exit_code == 1
    # FlashInfer-Bench's rule lets this error pass.
    assert "rownorm_package_rmsnorm_d64, 2 rows: wrong (an error is not below 0.001)" in ran.output
    assert ran.output.count("FlashInfer-Bench: PASSED") == 2
    assert "torch_rmsnorm_d64: failed: not built: BuildError" in ran.output
    assert "rownorm_rmsnorm_d64, 2 rows: ok" in ran.output
    assert "1 result is right; 2 wrong, failed or left out." in ran.output


def test_definitions_that_are_not_checked_are_counted_and_named(tmp_path):
    folder = export(tmp_path / "data", "--cols", 64, "--batch", 2)
    definition = json.loads((folder / "definitions/norm/rmsnorm_d64.json").read_text())
    (folder / "definitions/norm/alone.json").write_text(json.dumps(definition | {"name": "alone"}))
    foreign = definition | {
        "name": "scaled",
        "reference": "def run(x, weight, eps):\n    return x\n",
    }
    (folder / "definitions/norm/scaled.json").write_text(json.dumps(foreign))
    ran = invoke("fib", "check", folder)
    assert ran.exit_code == 1
    assert "left out: Definition scaled: skipped: its reference" in ran.output
    assert "left out: Definition alone: it has no workload or no Solution" in ran.output
    assert "3 results are right; 2 wrong, failed or left out." in ran.output
    ran = invoke("fib", "check", folder, "--json")
    names = {one["where"] for one in json.loads(ran.stdout)["left_out"]}
    assert names == {"Definition scaled", "Definition alone"}


@pytest.mark.parametrize(
    ("new", "why"),
    [
        ("return F.rms_norm(h, (64,), weight, eps).float()", "the dtype is torch.float32"),
        ("return F.rms_norm(h, (64,), weight, eps)[:1]", "the shape is (1, 64), not (2, 64)"),
        ("return F.rms_norm(h, (64,), weight, eps) / 0", "not finite"),
        ("raise RuntimeError('no memory')", "RuntimeError: no memory"),
    ],
)
def test_wrong_forms(tmp_path, new, why):
    folder = export(tmp_path / "data", "--cols", 64, "--batch", 2)
    change(folder, "torch_rmsnorm_d64", "return F.rms_norm(h, (64,), weight, eps)", new)
    ran = invoke("fib", "check", folder)
    assert ran.exit_code == 1
    assert why in ran.output


def test_bad_files_are_named_and_the_rest_is_read(tmp_path):
    folder = add_traces(export(tmp_path / "data", "--cols", "64,32", "--batch", 2))
    (folder / "definitions/norm/rmsnorm_d32.json").write_text("{}")
    (folder / "solutions/rownorm/broken.json").write_text("not JSON")
    workload = (folder / "workloads/norm/rmsnorm_d64.jsonl").read_text()
    # Older versions kept workloads among the traces.
    with (folder / "traces/norm/rmsnorm_d64.jsonl").open("a") as file:
        file.write(workload + '{"definition": "rmsnorm_d64"}\n')
    dataset = read(folder)
    found = [str(one) for one in dataset.problems]
    assert "definitions/norm/rmsnorm_d32.json: name: Field required" in found
    assert any(one.startswith("solutions/rownorm/broken.json: Invalid JSON") for one in found)
    assert (
        "traces/norm/rmsnorm_d64.jsonl, line 4: a workload in traces/, the layout of another version"
        in found
    )
    assert "traces/norm/rmsnorm_d64.jsonl, line 5: workload: Field required" in found
    assert (
        sum("its Definition rmsnorm_d32 is not in the folder" in one for one in found) == 3 + 1 + 3
    )
    assert list(dataset.content.definitions) == ["rmsnorm_d64"]
    assert len(dataset.content.traces["rmsnorm_d64"]) == 3
    ran = invoke("fib", "check", folder)
    assert ran.exit_code == 1
    assert "3 results are right" in ran.output


def test_a_folder_that_is_no_dataset(tmp_path):
    for name in ("check", "run", "report"):
        ran = invoke("fib", name, tmp_path)
        assert ran.exit_code == 2
        assert "is not a dataset: it has no folder definitions/" in ran.output


def test_a_random_eps_is_refused(tmp_path):
    folder = export(tmp_path / "data", "--cols", 64, "--batch", 2)
    path = folder / "workloads/norm/rmsnorm_d64.jsonl"
    workload = json.loads(path.read_text())
    workload["workload"]["inputs"]["eps"] = {"type": "random"}
    path.write_text(json.dumps(workload) + "\n")
    ran = invoke("fib", "check", folder)
    assert ran.exit_code == 1
    assert "eps must be a scalar; a random one is noise" in ran.output


def test_the_evaluations_of_these_tests_are_valid():
    from flashinfer_bench import Evaluation

    assert Evaluation.model_validate(evaluation()).performance.speedup_factor == 5.0
