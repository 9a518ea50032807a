"""An integration is imported by its framework or by name only, and imports no framework but its own."""

import ast
import subprocess
import sys
from pathlib import Path

import rownorm

FOLDER = Path(rownorm.__file__).parent / "integrations"
FRAMEWORKS = {
    "aten": set(),
    "axolotl": {"axolotl"},
    "flashinfer": set(),
    "hf_kernels": set(),
    "lightning": {"lightning"},
    "megatron": {"megatron"},
    "sglang": {"sglang"},
    "torchtitan": {"torchtitan"},
    "trainer": {"transformers"},
    "vllm": {"vllm"},
}


def test_the_library_imports_none():
    program = "import sys, rownorm, rownorm.patching; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not [name for name in ran.stdout.split() if name.startswith("rownorm.integrations")]


def test_each_imports_its_framework_and_torch():
    files = {file.stem: file for file in FOLDER.glob("*.py") if file.stem != "__init__"}
    assert files.keys() == FRAMEWORKS.keys()
    for name, file in files.items():
        packages = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                packages |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                packages.add(node.module.partition(".")[0])
        assert packages - sys.stdlib_module_names - {"torch"} == FRAMEWORKS[name]
        assert f"{name}.py" in (FOLDER / "__init__.py").read_text()
