from .command import Command, command_of
from .defaults import PICTURES, TITLE
from .page import make_page, write_page

__all__ = ["PICTURES", "TITLE", "Command", "command_of", "make_page", "write_page"]
