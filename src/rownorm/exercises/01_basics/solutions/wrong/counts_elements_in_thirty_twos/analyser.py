"""How memory sees the loads of a warp."""


def sectors(addresses, width):
    """How many 32-byte sectors one request moves."""
    per_transaction = min(len(addresses), 32)
    return (len(addresses) + per_transaction - 1) // per_transaction
