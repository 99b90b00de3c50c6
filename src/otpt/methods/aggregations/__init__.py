"""Aggregations: which views decide, and how."""
