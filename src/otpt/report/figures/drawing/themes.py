"""The names of the colours of figures; without matplotlib, for the options of the command line."""

THEMES = ("light", "dark")
"""Colours that a figure can have: for a light page, or for a dark one."""
