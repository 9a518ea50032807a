"""A small Evoformer, trained with PyTorch op by op, with fused PyTorch, and with rownorm.

    python examples/tiny_openfold_v3.py --help

The three stages have the same parameters and see the same data, synthetic alignments, so their losses agree.
The classes are bins of distances between residues.
"""

from __future__ import annotations

from rownorm_lab.models import comparison


def main() -> None:
    comparison.main("openfold")


if __name__ == "__main__":
    main()
