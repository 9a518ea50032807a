"""The Triton kernels of the plain providers; imported when one of them runs."""

# What both plain providers declare.
PLAIN = {
    "kind": "plain",
    "operations": ("layer_norm", "rms_norm"),
    "directions": ("forward",),
    "options": ("bias", "no_bias"),
    "needs": ("triton",),
    "install": "pip install triton",
    "needs_gpu": True,
    "interpreted": True,
}
