"""Trim a source page of ncu and the counters of the same report: trim_source.py SOURCE.csv RAW.csv FOLDER.

Of KERNELS the rows of all source lines are kept; of their instructions, those of DETAILED in the first launch. Folders
in front of a package are replaced.
"""

import csv
import re
import sys
from pathlib import Path

KERNELS = ("forward_resident", "column_sums")
DETAILED = ("src/rownorm/kernels/forward/resident.py", "forward_resident")
FOLDERS = ((".*/site-packages/", "/usr/lib/python3/dist-packages/"), (".*/src/", "src/"))
TOTALS = (
    *("smsp__inst_executed.sum", "smsp__pcsamp_sample_count"),
    *("memory_l2_theoretical_sectors_global", "memory_l2_theoretical_sectors_global_ideal"),
)


def trimmed_source(lines):
    """The tables of KERNELS, shorter; each warning once."""
    kept, tables, file = [], [], ""
    for line in lines:
        if line.startswith("=="):
            kept += [] if line in kept else [line]
        elif line.startswith('"File Path"'):
            file = line.split('"')[3]
            for folder, other in FOLDERS:
                file = re.sub(folder, other, file)
        elif line.startswith('"Function Name"'):
            tables.append((file, line.split('"')[3]))
            if tables[-1][1] in KERNELS:
                kept += [f'"File Path","{file}"', line]
        elif tables[-1][1] in KERNELS:
            is_instruction = line.startswith('"",')
            is_kept = tables[-1] == DETAILED and tables.count(DETAILED) == 1 and '"..."' not in line
            kept += [line] if is_kept or not is_instruction else []
    return kept


def trimmed_counters(rows):
    """The launches of KERNELS, with TOTALS only."""
    header, units, *launches = rows
    places = [header.index(name) for name in ("ID", "Process ID", "Kernel Name", *TOTALS)]
    launches = [row for row in launches if row[header.index("Kernel Name")] in KERNELS]
    return [[row[place] for place in places] for row in (header, units, *launches)]


if __name__ == "__main__":
    source, raw, folder = map(Path, sys.argv[1:])
    short = trimmed_source(source.read_text().splitlines())
    (folder / "ncu-source.csv").write_text("\n".join(short) + "\n")
    with raw.open(newline="") as read, (folder / "ncu.csv").open("w", newline="") as written:
        writer = csv.writer(written, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerows(trimmed_counters(list(csv.reader(read))))
