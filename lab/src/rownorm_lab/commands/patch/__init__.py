"""``rownorm patch``."""
