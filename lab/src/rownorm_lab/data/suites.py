"""Named lists of cases: sweeps, the shapes that the bars use, and the shapes of real models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .case import Case, Direction, Dtype
from .shapes import Shape, parse_shapes


class Suite(NamedTuple):
    """A named list of cases, for ``--suite``; ``about`` is one line of help."""

    name: str
    about: str
    cases: Callable[[], list[Case]]


# ---- sweeps ----

SPEED: tuple[Shape, ...] = (
    *((32768, cols) for cols in (256, 512, 1024, 2048, 4096, 5120, 8192)),
    *((16384, 16384), (8192, 32768), (4096, 65536), (2048, 131072), (1024, 262144)),
)
PASSES: tuple[Direction, ...] = ("forward", "backward")
NORMS = ("rms_norm", "layer_norm")


def grid(
    operations: Sequence[str],
    directions: Sequence[Direction],
    dtypes: Sequence[Dtype],
    shapes: Sequence[Shape],
    **options: Any,
) -> list[Case]:
    """Every combination; the shape changes fastest."""
    return [
        Case(operation=op, direction=way, dtype=dtype, rows=rows, cols=cols, **options)  # type: ignore[arg-type]
        for op in operations
        for way in directions
        for dtype in dtypes
        for rows, cols in shapes
    ]


def _quick() -> list[Case]:
    widths = [(512, 256), (512, 1024), (512, 4096)]
    batches = [(1, 4096), (32, 4096)]
    return [
        *grid(["rms_norm"], ["forward"], ["bf16"], widths + batches),
        *grid(["layer_norm"], ["forward"], ["fp32"], widths),
        *grid(["rms_norm"], ["backward"], ["bf16"], [(512, 1024), (512, 4096)]),
        *grid(["add_rms_norm"], ["forward"], ["bf16"], [(512, 4096)], residual_dtype="fp32"),
    ]


def _course() -> list[Case]:
    return grid(["layer_norm"], ["forward"], ["fp32"], parse_shapes("4096x256..32768"))


def _flashinfer() -> list[Case]:
    return grid(["rms_norm"], ["forward"], ["fp16"], parse_shapes("1,8,32,128,512x4096"), eps=1e-6)


def _batch() -> list[Case]:
    return grid(["rms_norm"], ["forward"], ["fp16"], parse_shapes("1..32768x4096"), eps=1e-6)


def _speed(dtype: Dtype) -> list[Case]:
    return grid(NORMS, PASSES, [dtype], SPEED)


def _speed_add() -> list[Case]:
    return grid(["add_rms_norm"], PASSES, ["bf16"], SPEED, residual_dtype="fp32")


def _speed_variants() -> list[Case]:
    middle = [shape for shape in SPEED if 1024 <= shape[1] <= 16384]
    options = ({"pre_bias": True}, {"activation": "silu"}, {"activation": "gelu"})
    return [case for one in options for case in grid(NORMS, PASSES, ["bf16"], middle, **one)]


def _speed_wide() -> list[Case]:
    return grid(NORMS, PASSES, ["bf16"], parse_shapes("1,4,16x64k,256k,1m"))


SIZES = tuple(1 << n for n in (24, 26, 28))  # elements: a micro-batch, and so on


def _speed_sizes() -> list[Case]:
    widths = (64, 128, 256, 4096, 16384, 32768, 65536, 131072)
    shapes = [(elements // cols, cols) for cols in widths for elements in SIZES]
    return grid(NORMS, PASSES, ["bf16"], shapes)


def _fused_bias() -> list[Case]:
    return grid(["layer_norm"], ["forward"], ["fp32"], [(512, 8192)], pre_bias=True, eps=1e-6)


def _host() -> list[Case]:
    return grid(NORMS, ["forward", "both"], ["fp16"], [(8, 4096)])


def _host_forms() -> list[Case]:
    forms: list[tuple[str, dict[str, Any]]] = [
        ("layer_norm", {"weight": False, "sample_rows": 4}),
        ("rms_norm", {"gate_activation": "silu"}),
        ("rms_norm", {"gate_activation": "silu", "gate_first": True}),
    ]
    shape, directions = [(8, 4096)], ("forward", "both")
    return [
        case
        for operation, options in forms
        for case in grid([operation], directions, ["bf16"], shape, **options)  # type: ignore[arg-type]
    ]


FORMS = ("host-forms", "modulation", "gates")


def _speed_all() -> list[Case]:
    parts = ("", "-fp16", "-fp32", "-add", "-variants", "-wide", "-sizes")
    others = ("course", "fused-bias", "flashinfer", "host", *FORMS)
    names = (*(f"speed{part}" for part in parts), *others)
    return list({case.key: case for name in names for case in SUITES[name].cases()}.values())


# ---- models: the tokens of a training step (forward and backward) and of a decoding step ----


def _layers(
    name: str,
    operations: Sequence[str],
    cols: int,
    training: int,
    decoding: Sequence[int] = (),
    **options: Any,
) -> list[Case]:
    def named(phase: str) -> dict[str, Any]:
        return options | {"name": f"{name}, {phase}"}

    trained = grid(operations, PASSES, ["bf16"], [(training, cols)], **named("training"))
    steps = [(rows, cols) for rows in decoding]
    return trained + grid(operations, ["forward"], ["bf16"], steps, **named("decoding"))


STREAM = ("rms_norm", "add_rms_norm")  # the first norm of a model, and those fused with the add
TOKENS = 8192  # in one training step on one GPU
BATCH = (1, 32, 256)  # sequences decoded together


def _llama(name: str, hidden: int) -> list[Case]:
    return _layers(f"{name} hidden", STREAM, hidden, TOKENS, BATCH)


def _heads(name: str, cols: int, heads: int, kv_heads: int) -> list[Case]:
    """The norms of queries and keys: one row per head and token."""
    return [
        case
        for of, n in (("queries", heads), ("keys", kv_heads))
        for case in _layers(
            f"{name} {of}", ["rms_norm"], cols, TOKENS * n, [n * b for b in BATCH], eps=1e-6
        )
    ]


def _qwen3() -> list[Case]:
    return [
        *_layers("Qwen3-8B hidden", STREAM, 4096, TOKENS, BATCH, eps=1e-6),
        *_heads("Qwen3-8B", 128, heads=32, kv_heads=8),
        *_layers("Qwen3-32B hidden", STREAM, 5120, TOKENS, BATCH, eps=1e-6),
    ]


def _gemma() -> list[Case]:
    # Gemma also normalizes what it adds to the residual stream, so few of its adds can be fused.
    hidden = (
        ("Gemma-2-2B", 2304),
        ("Gemma-2-9B", 3584),
        ("Gemma-3-4B", 2560),
        ("Gemma-3-27B", 5376),
    )
    return [
        *(
            case
            for name, cols in hidden
            for case in _layers(f"{name} hidden", ["rms_norm"], cols, TOKENS, BATCH, eps=1e-6)
        ),
        *_heads("Gemma-3-4B", 256, heads=8, kv_heads=4),
    ]


def _gpt_2() -> list[Case]:
    sizes = (("GPT-2", 768), ("GPT-2 medium", 1024), ("GPT-2 large", 1280), ("GPT-2 XL", 1600))
    operations = ("layer_norm", "add_layer_norm")
    return [
        case
        for name, cols in sizes
        for case in _layers(f"{name} hidden", operations, cols, 16 * 1024, BATCH)
    ]


def _vit() -> list[Case]:
    # Images of 224 x 224 pixels: 14 or 16 patches per side, plus the class token.
    sizes = (("ViT-B/16", 768, 197), ("ViT-L/16", 1024, 197), ("ViT-H/14", 1280, 257))
    return [
        case
        for name, cols, tokens in sizes
        for case in [
            *_layers(f"{name}, 64 images", ["layer_norm"], cols, 64 * tokens, eps=1e-6),
            *grid(
                ["layer_norm"],
                ["forward"],
                ["bf16"],
                [(tokens, cols)],
                eps=1e-6,
                name=f"{name}, one image, inference",
            ),
        ]
    ]


def _evoformer() -> list[Case]:
    # (sequences, residues) of AlphaFold 2's initial training and of its fine-tuning.
    return [
        case
        for phase, sequences, residues in (("initial", 128, 256), ("fine-tuning", 512, 384))
        for tensor, rows, cols in (
            ("MSA", sequences * residues, 256),
            ("pair", residues * residues, 128),
        )
        for case in _layers(f"Evoformer {tensor}, {phase}", ["layer_norm"], cols, rows)
    ]


def _modulated(name: str, cols: int, samples: int, sample_rows: int) -> list[Case]:
    """LayerNorm without a weight, then scale and shift of each sample, as diffusion transformers have it (AdaLN)."""
    shape, eps = [(samples * sample_rows, cols)], 1e-6
    options = {"weight": False, "sample_rows": sample_rows, "eps": eps, "name": name}
    return grid(["layer_norm"], PASSES, ["bf16"], shape, **options)


def _dit() -> list[Case]:
    return [
        *_modulated("DiT-XL/2, 256 images", 1152, 256, 256),
        *_modulated("PixArt, 64 images", 1152, 64, 1024),
        *_modulated("Stable Diffusion 3, 64 images", 1536, 64, 1024),
        *_modulated("Lumina, 64 images", 2304, 64, 1024),
        *_modulated("3072 columns, 64 images", 3072, 64, 1024),
        *_modulated("Wan 14B, 64 samples", 5120, 64, 1024),
    ]


def _flux() -> list[Case]:
    return [
        *_modulated("FLUX.1, image and text, training", 3072, 16, 4608),
        *_modulated("FLUX.1, image and text, inference", 3072, 1, 4608),
        *_modulated("a modulation for each token", 3072, 16384, 1),
    ]


def _gated(
    name: str, cols: int, rows: int, directions: Sequence[Direction] = PASSES, **options: Any
) -> list[Case]:
    """RMSNorm and a gate after silu, as in linear attention and in state space models."""
    options = {"gate_activation": "silu", "eps": 1e-6, "name": name} | options
    return grid(["rms_norm"], directions, ["bf16"], [(rows, cols)], **options)


def _qwen3_next() -> list[Case]:
    """A row for each of 32 heads of linear attention; and other models with a gate."""
    heads = 32
    return [
        *_gated("Qwen3-Next, training", 128, TOKENS * heads),
        *(_gated("Qwen3-Next, decoding", 128, heads * n, ["forward"])[0] for n in BATCH),
        *_gated("Kimi Linear, training", 128, TOKENS * heads, gate_activation="sigmoid"),
        *_gated("Mamba2-2.7B, training", 5120, TOKENS, gate_first=True, eps=1e-5),
        *_layers("Qwen3-Next-80B hidden", STREAM, 2048, TOKENS, BATCH, eps=1e-6),
    ]


def _modulation() -> list[Case]:
    wide = ((3072, "3072 columns"), (5120, "5120 columns"))
    return [case for cols, name in wide for case in _modulated(name, cols, 64, 1024)]


def _gates() -> list[Case]:
    """128 x 2^21 elements in rows of 128 columns, as many bytes in rows of 4096, and gates in both orders."""
    shapes = (("rows of a head", 128, 1 << 21), ("4096 columns", 4096, 1 << 16))
    return [
        case
        for name, cols, rows in shapes
        for first in (False, True)
        for case in _gated(name, cols, rows, gate_first=first)
    ]


SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite("quick", "a few small cases, for a first look on any machine", _quick),
        Suite(
            "course",
            "LayerNorm fp32, 4096 rows of 256 to 32768 columns, as in exercise 3 of the course",
            _course,
        ),
        Suite("flashinfer", "RMSNorm fp16, 1 to 512 rows of 4096 columns", _flashinfer),
        Suite("batch", "the same with 1 to 32768 rows: where bandwidth saturates", _batch),
        Suite(
            "speed",
            "both norms, both passes, bf16, 256 to 262144 columns, larger than the caches",
            lambda: _speed("bf16"),
        ),
        Suite("speed-fp16", "the same in fp16", lambda: _speed("fp16")),
        Suite("speed-fp32", "the same in fp32", lambda: _speed("fp32")),
        Suite("speed-add", "residual add and RMSNorm, bf16, fp32 residual", _speed_add),
        Suite("speed-variants", "pre_bias, silu, gelu; 1024 to 16384 columns", _speed_variants),
        Suite("speed-wide", "1, 4, 16 rows of 65536 to 1048576 columns", _speed_wide),
        Suite("speed-sizes", "64 to 131072 columns, 2^24, 2^26 and 2^28 elements", _speed_sizes),
        Suite("fused-bias", "LayerNorm of x + pre_bias, fp32, 512x8192", _fused_bias),
        Suite("host", "8 rows of 4096 columns, fp16: host time of a call", _host),
        Suite("host-forms", "the same with scale and shift, or with a gate, bf16", _host_forms),
        Suite("speed-all", "all suites above except quick and batch", _speed_all),
        Suite("llama-3-8b", "Llama-3-8B, 4096 columns", lambda: _llama("Llama-3-8B", 4096)),
        Suite("llama-3-70b", "Llama-3-70B, 8192 columns", lambda: _llama("Llama-3-70B", 8192)),
        Suite("qwen3", "Qwen3-8B: hidden, queries and keys; Qwen3-32B: hidden", _qwen3),
        Suite("gemma", "Gemma 2 and 3: hidden, queries and keys", _gemma),
        Suite("gpt-2", "GPT-2, 768 to 1600 columns", _gpt_2),
        Suite("vit", "ViT-B/16, L/16, H/14", _vit),
        Suite("dit", "diffusion transformers: scale and shift for each image, 1152 to 5120", _dit),
        Suite("flux", "FLUX.1, 3072 columns: one sample, several, and each token its own", _flux),
        Suite(
            "qwen3-next",
            "gated norms of Qwen3-Next, Kimi Linear and Mamba2; Qwen3-Next's hidden",
            _qwen3_next,
        ),
        Suite(
            "modulation", "scale and shift of 64 samples of 1024 rows, 3072 and 5120", _modulation
        ),
        Suite("gates", "gated norms, both orders, 128 and 4096 columns", _gates),
        Suite("evoformer", "AlphaFold 2's MSA and pair tensors", _evoformer),
    )
}
