"""A mode that is off."""


def is_batch_invariant_mode_enabled():
    return False
