"""Variables, read when they are asked for."""

import os

VLLM_PLUGINS: list[str] | None
VLLM_BATCH_INVARIANT: bool


def __getattr__(name):
    if name == "VLLM_PLUGINS":
        return os.environ["VLLM_PLUGINS"].split(",") if name in os.environ else None
    if name == "VLLM_BATCH_INVARIANT":
        return bool(int(os.environ.get(name, "0")))
    raise AttributeError(name)
