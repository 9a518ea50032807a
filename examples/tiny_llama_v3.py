"""A small Llama, trained with PyTorch op by op, with fused PyTorch, and with rownorm.

    python examples/tiny_llama_v3.py --help

The three stages have the same parameters and see the same data, a synthetic language, so their losses agree.
The loss of a model that knows only how often a token occurs is the logarithm of the vocabulary: 4.16 for tiny.
"""

from __future__ import annotations

from rownorm_lab.models import comparison


def main() -> None:
    comparison.main("llama")


if __name__ == "__main__":
    main()
