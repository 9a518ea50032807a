"""How memory sees the loads of a warp.

Answers to the questions of the text:

1. The load width grows from 2 to 16 bytes, and the loads of a row shrink accordingly. Sectors are the same from 128 on.
   The bytes in flight go with the predicted time: with 512 and 1024 bytes for each program, memory is waited for; from
   2048 on, so many bytes are on their way that bandwidth is the limit, and more do not help. Occupancy, which
   rownorm analyze prints as well, is 100% for every block and explains nothing here. Measured on an H200 with 32768 rows:
   350, 201, 153, 141 and 154 µs for blocks of 64, 128, 256, 512 and 1024.
2. Half of the threads repeat the other half's loads: a sector that two warps ask for counts twice.
3. The whole row, if it is not wider than what the cache can keep for all programs that run. Here it is 8 KB a row.
"""


def sectors(addresses, width):
    """How many 32-byte sectors one request moves."""
    touched = set()
    for address in addresses:
        touched.update(range(address // 32, (address + width - 1) // 32 + 1))
    return len(touched)
