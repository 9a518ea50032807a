"""How memory sees the loads of a warp."""


def sectors(addresses, width):
    """How many 32-byte sectors one request moves.

    addresses: the byte address of each of the 32 threads; width: bytes that each thread loads.
    """
    raise NotImplementedError("sectors")
