"""The bars as data: the parts of the measurement, and what each figure must be on an H200."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...data.records import CEILING, EAGER, OURS
from ...models import DIT_SIZES, SMALL_MODELS, Size
from . import draw
from .figures import (
    ANY,
    OF_COMPILED,
    OF_LARGE,
    OF_PLAIN,
    OF_PLAIN_HOST,
    OF_TORCH,
    WITH_ADD,
    Bar,
    FirstCallBar,
    Job,
    Part,
    plain_of,
)
from .settings import ADD, DIT_STEPS, OWN_PROVIDERS, PLAIN, STEPS

FORWARD, BACKWARD, STEP = ("forward",), ("backward",), ("both",)
PEERS_AND_CEILING = (EAGER, "torch.compile", "liger", "quack", "fla", CEILING)
PROVIDERS = (OURS, *PEERS_AND_CEILING)

MEMORY = Bar("of the memory allowed", "<=", 1)
SPEED = (
    Bar("of the fastest peer", ">=", 0.97, FORWARD),
    Bar("of the ceiling", ">=", 0.92, FORWARD, cols=range(1024, ANY.stop)),
    Bar("of the fastest peer", ">=", 1.00, BACKWARD),
    Bar("of the ceiling", ">=", 0.80, BACKWARD, cols=range(1024, 16385)),
    Bar("of the ceiling", ">=", 0.70, BACKWARD, cols=range(16385, ANY.stop)),
    MEMORY,
)
# The bars of bf16 without the ceiling, which few widths of the draw were tuned for.
DRAWN = tuple(bar for bar in SPEED if bar.figure == "of the fastest peer")
RESIDUAL = (Bar("of the fastest peer", ">=", 1.00), MEMORY)
OPTIONS = (
    Bar(OF_PLAIN, ">=", 0.97),
    Bar(OF_COMPILED, ">", 1.00),
    MEMORY,
)
LAYER_NORM_FP32 = (Bar(OF_TORCH, ">", 1.00),)
FEW_ROWS = (
    Bar("of the fastest peer", ">=", 0.97),
    Bar("microseconds", "<", 10, rows=range(1, 2)),
    Bar("microseconds", "<", 20, rows=range(2, 33)),
    Bar("microseconds", "<", 50, rows=range(33, 129)),
    Bar("microseconds", "<", 150, rows=range(129, 513)),
)
# What a fourth of the elements costs, as a micro-batch has them; and short rows where there are enough of them.
SIZES = (
    Bar(OF_LARGE, ">=", 0.97, elements=1 << 26),
    Bar("of the ceiling", ">=", 0.88, cols=range(256, 257), elements=1 << 28),
    MEMORY,
)
WIDE_ROWS = (Bar(OF_TORCH, ">=", 3),)
HOST = (
    Bar("of torch's host cost", "<=", 1.10, FORWARD),
    Bar("of torch's host cost", "<=", 1.15, STEP),
)
SMALL = tuple(
    Bar(figure, ">=", bound, setting=setting)
    for setting, bounds in STEPS.items()
    for figure, bound in zip((OF_TORCH, WITH_ADD), bounds, strict=True)
)
DIT = tuple(Bar(OF_TORCH, ">=", bound, setting=setting) for setting, bound in DIT_STEPS.items())
ON_CPU = (Bar(OF_TORCH, ">=", 1),)
MODULATION = (
    Bar("of the ceiling", ">=", 0.95, FORWARD),
    Bar(OF_COMPILED, ">=", 1.0, FORWARD),
    Bar("of the ceiling", ">=", 0.80, BACKWARD),
    Bar(OF_COMPILED, ">=", 1.3, BACKWARD),
)
GATES = (
    Bar("of the ceiling", ">=", 0.93, FORWARD),
    Bar("of the fastest peer", ">=", 1.0, FORWARD),
    Bar("of the ceiling", ">=", 0.80, BACKWARD),
    Bar("of the fastest peer", ">=", 1.2, BACKWARD),
)
HOST_OF_FORMS = (Bar(OF_PLAIN_HOST, "<=", 1.1),)


def _described(name: str, size: Size) -> str:
    tokens = f"{size.batch} x {size.n_tokens} tokens"
    return f"{name}: {size.n_layers} layers of width {size.width}, {tokens}"


MODELS = "; ".join(_described(name, size) for name, size in SMALL_MODELS.items())
DITS = "; ".join(_described("DiT", size) for size in DIT_SIZES.values())
COMPILED = (EAGER, "torch.compile", CEILING)
GATED_PEERS = (EAGER, "torch.compile", "fla", CEILING)

# In the order of measurement; the longest parts come last, because a time limit may cut them off. Two parts must follow
# others. few-rows follows fp16: fla tunes its kernel for 4096 columns on the first case it sees, which must be a large
# one. options follows bf16, which measures the plain norms with all providers.
PARTS = (
    Part("host", "Host cost of a call", ("host",), (EAGER,), "host µs", HOST),
    Part(
        "calls",
        "Host cost of one eager call",
        (),
        (EAGER,),
        "host µs",
        HOST,
        "torch's function and rownorm's take turns, round by round. Times are medians of the host's time for one call.",
    ),
    Part(
        "host-forms",
        "Host cost of a call with a modulation or a gate",
        (),
        (PLAIN,),
        "host µs",
        HOST_OF_FORMS,
        "rownorm's call and its call of the plain norm of the same shape take turns, round by round. Times are medians "
        "of the host's time for one call. Modulation is of two samples, and without a weight.",
    ),
    Part(
        "small",
        "Training steps of two small models",
        (),
        (EAGER, ADD),
        "ms",
        SMALL,
        "Kinds of norms take turns, step by step: torch's, rownorm's, and rownorm's with the residual add. A step is "
        f"forward and backward. Times are medians. {MODELS}.",
    ),
    Part(
        "dit-steps",
        "Training steps of a DiT",
        (),
        (EAGER,),
        "ms",
        DIT,
        "PyTorch's operators and rownorm's norms, with gate, residual add, scale and shift, take turns, step by step. "
        f"A step is forward and backward. Times are medians. {DITS}. Compiled: the blocks, each for itself.",
    ),
    Part(
        "layer-norm-fp32",
        "LayerNorm in fp32",
        ("course", "fused-bias"),
        (EAGER, CEILING),
        "µs",
        LAYER_NORM_FP32,
    ),
    Part("wide-rows", "A few wide rows", ("speed-wide",), (EAGER, CEILING), "µs", WIDE_ROWS),
    Part("bf16", "bf16", ("speed",), PEERS_AND_CEILING, "GB/s", SPEED),
    Part("residual", "Residual add and norm", ("speed-add",), PEERS_AND_CEILING, "GB/s", RESIDUAL),
    Part("fp16", "fp16", ("speed-fp16",), PEERS_AND_CEILING, "GB/s", SPEED),
    Part("few-rows", "A few rows", ("flashinfer",), PEERS_AND_CEILING, "µs", FEW_ROWS),
    Part("options", "pre_bias and activations", ("speed-variants",), COMPILED, "GB/s", OPTIONS),
    Part("sizes", "2^24, 2^26 and 2^28 elements", ("speed-sizes",), (CEILING,), "GB/s", SIZES),
    Part("modulation", "Scale and shift", ("modulation",), COMPILED, "GB/s", MODULATION),
    Part("gates", "Gated norms", ("gates",), GATED_PEERS, "GB/s", GATES),
    Part("fp32", "fp32", ("speed-fp32",), PEERS_AND_CEILING, "GB/s", SPEED),
)
# Measured only if it is named: compiling its widths takes long, and a run has others than the run before.
DRAW = Part(
    draw.PART,
    "Widths drawn by a seed",
    (),
    PEERS_AND_CEILING,
    "GB/s",
    DRAWN,
    f"Each run draws {draw.EACH} widths of each kind with its seed: {', '.join(draw.KINDS)}. {draw.BESIDE_RESIDUAL} of "
    "each kind are also measured with an fp32 residual.",
)
# Measured and judged only if it is named: it is for a machine on which nothing else runs, with a GPU or without.
CPU = Part(
    "cpu",
    "Norms of tensors on a CPU",
    (),
    (EAGER,),
    "µs",
    ON_CPU,
    "torch's norm and rownorm's take turns, in rounds of about 2 ms. Times are medians of one call. The residual add "
    "is beside x + residual and a norm of it; backward is of both outputs, for the gradients of all inputs and "
    "parameters.",
)
# Each pass compiles at most two kernels for a new width, and none for a new number of rows.
FIRST_CALL = FirstCallBar(
    name="first-call",
    operations=("rms_norm", "layer_norm"),
    cols=(1000, 4096, 32768, 65536),
    most={"forward": 2, "training forward": 2, "backward": 2, "other rows": 0},
)
ONLY_NAMED = (DRAW, CPU)
NAMES = (*(part.name for part in (*PARTS, *ONLY_NAMED)), FIRST_CALL.name)


def chosen(
    names: Collection[str], tiny: bool = False, drawn: bool = False
) -> tuple[list[Part], FirstCallBar]:
    """The parts of these names, and the first calls, without widths if they are not named.

    Default: all but draw and cpu. tiny: trials of those parts that have one, instead of them. drawn: a run has drawn
    widths, so that draw is of the default.
    """
    default = [*PARTS, *([DRAW] if drawn else [])]
    parts = [part for part in (*PARTS, *ONLY_NAMED) if part.name in names] if names else default
    if tiny:
        parts = [part.tiny for part in parts if part.has_trial]
    with_first_calls = not tiny and (not names or FIRST_CALL.name in names)
    return parts, FIRST_CALL if with_first_calls else FIRST_CALL._replace(operations=())


def jobs_of(parts: Sequence[Part], chosen: Collection[str] = PROVIDERS) -> list[Job]:
    """Every case once, with those of the chosen providers that its part names.

    A part that is compared with the plain norms adds them.
    """
    chosen = {*chosen, *(OWN_PROVIDERS if OURS in chosen else ())}
    jobs: dict[str, Job] = {}
    for part in parts:
        for case in part.cases:
            jobs.setdefault(case.key, (case, (OURS, *part.providers)))
        for case in map(plain_of, part.cases if part.judges(OF_PLAIN) else ()):
            jobs.setdefault(case.key, (case, (OURS, CEILING)))
    selected = (
        (case, tuple(name for name in names if name in chosen)) for case, names in jobs.values()
    )
    return [(case, names) for case, names in selected if names]
