"""Commands that read runs: metrics, tables, comparisons, figures, a page."""
