"""The names of models, stages and sizes, for options.

Written out, because importing them from ``rownorm.models`` imports torch. A test compares them.
"""

TASKS = ("llama", "openfold")
STAGES = ("baseline", "fused", "rownorm")
SIZES = ("tiny", "small", "medium")
