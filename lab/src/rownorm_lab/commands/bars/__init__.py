"""``rownorm bars``: the figures that must hold on an H200. Measure them, judge them, publish them."""
