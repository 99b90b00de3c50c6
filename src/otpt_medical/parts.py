"""Parts of names: the numbers of ``methods.toml``, which every module with a system needs."""

from importlib import resources

from otpt.files import parse_toml
from otpt.methods import register_methods
from otpt.registry import CLEAN, NONE

ONLY = {"init": ("words",), "calibrate": (NONE,), "aggregate": (CLEAN,), "gate": (NONE,)}
"""Parts that a method with its own network can be combined with."""

register_methods(parse_toml(resources.files(__package__).joinpath("methods.toml").read_text("utf-8")))
