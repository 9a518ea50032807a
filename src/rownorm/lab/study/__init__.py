"""``rownorm study``: the stages of a model side by side, in whole training steps."""
