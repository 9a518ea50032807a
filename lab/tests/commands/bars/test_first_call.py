"""Counting the kernels that first calls compile."""

import json
import os
import subprocess
import sys

COMPILE_TWICE = """
import json, triton, triton.language as tl
from rownorm_lab.commands.bars.first_call import compilations
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def nothing(x_ptr, N: tl.constexpr):
    tl.store(x_ptr, N)

def compile(n):
    source = ASTSource(nothing, {"x_ptr": "*i32", "N": "constexpr"}, {(1,): n})
    triton.compile(source, target=GPUTarget("cuda", 90, 32))

counted = []
for n in (1, 1, 2):
    with compilations() as names:
        compile(n)
    counted.append(names)
compile(3)  # not counted
print(json.dumps(counted))
"""


def test_compilations_are_counted_by_triton(tmp_path):
    script = tmp_path / "twice.py"
    script.write_text(COMPILE_TWICE)
    variables = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, script], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["nothing"], [], ["nothing"]]
