"""How memory sees the loads of a warp."""


def sectors(addresses, width):
    """How many 32-byte sectors one request moves."""
    return max(1, len(addresses) * width // 32)
