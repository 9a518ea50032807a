"""Profile RMSNorm with rownorm and with torch: Chrome traces, counters where there are some, and a summary.

    python examples/run_triton_profiling.py --cols 4096 --rows 8192 --out results/profile

The options are those of ``rownorm profile``; ``--help`` lists them. The traces, triton_profile.json and
pytorch_profile.json, open in ui.perfetto.dev.
"""

from __future__ import annotations

import sys

from rownorm_lab.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["profile", "rms_norm"]
    main()
