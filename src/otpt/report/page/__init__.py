"""One page to share: summary, sortable tables, reliability diagrams, pictures, settings, and how to make it again."""

from __future__ import annotations

from otpt.report.page.command import Command, command_of
from otpt.report.page.page import PICTURES, TITLE, make_page, write_page

__all__ = ["PICTURES", "TITLE", "Command", "command_of", "make_page", "write_page"]
