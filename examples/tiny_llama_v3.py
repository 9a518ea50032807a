"""A small Llama, trained with PyTorch op by op, with fused PyTorch, and with rownorm.

    python examples/tiny_llama_v3.py --help

The three stages have the same parameters and see the same data, a synthetic language, so their losses agree.
The loss of a model that knows only how often a token occurs is the logarithm of the vocabulary: 4.16 for tiny.
"""

from __future__ import annotations

import argparse

from rownorm.lab.train.comparison import compare_stages, table


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the three stages and compare them.")
    sizes = ("tiny", "small", "medium")
    parser.add_argument("--size", choices=sizes, default="tiny", help="(default: tiny)")
    parser.add_argument("--steps", type=int, default=20, help="(default: 20)")
    parser.add_argument("--amp", choices=("bf16",), help="fp32 parameters under autocast")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    print(table(compare_stages("llama", options.size, options.steps, amp=options.amp)))


if __name__ == "__main__":
    main()
