"""``rownorm report``: records to ``report.html``, ``plots/*.png`` and ``analysis.md``."""
