"""The Triton kernels of the plain providers; imported with Triton when one of them runs."""

# What both have in common as providers.
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
