"""Datasets of FlashInfer-Bench for tests: small exports, and traces as a GPU would have left them."""

from flashinfer_bench import Trace

from lab_support.lab_commands import invoke
from rownorm_lab.fib.dataset import read

GPU = "NVIDIA H200"


def export(folder, *options):
    """A small dataset, rows of 64 columns unless the options say otherwise."""
    options = options or ("--cols", 64, "--batch", "1,8")
    ran = invoke("fib", "export", folder, *options)
    assert ran.exit_code == 0, ran.output
    return folder


def evaluation(status="PASSED", latency_ms=0.02, error=1e-4, hardware=GPU, **fields):
    """The evaluation of a made-up trace."""
    values = {
        "status": status,
        "environment": {"hardware": hardware, "libs": {"torch": "2.11.0", "triton": "3.6.0"}},
        "timestamp": "2026-11-17T12:00:00",
    }
    if status in ("PASSED", "INCORRECT_NUMERICAL"):
        values["correctness"] = {"max_relative_error": error, "max_absolute_error": error}
    if status == "PASSED":
        values["performance"] = {
            "latency_ms": latency_ms,
            "reference_latency_ms": 0.1,
            "speedup_factor": 0.1 / latency_ms,
        }
    return values | fields


def add_traces(folder, faster="rownorm_", **fields):
    """Made-up traces for all Solutions and workloads of a dataset; those whose names begin with ``faster`` win."""
    content = read(folder).content
    for name, workloads in content.workloads.items():
        content.add_traces(
            [
                Trace(
                    definition=name,
                    workload=one.workload,
                    solution=solution.name,
                    evaluation=evaluation(
                        **(
                            {"latency_ms": 0.01 if solution.name.startswith(faster) else 0.02}
                            | fields
                        )
                    ),
                )
                for solution in content.solutions[name]
                for one in workloads
            ]
        )
    return folder
