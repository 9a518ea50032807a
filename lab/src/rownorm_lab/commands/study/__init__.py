"""``rownorm study``: whole training steps of models, and what one eager call costs the host."""
