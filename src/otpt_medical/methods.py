"""The methods of this plugin: what :mod:`otpt.methods` imports."""

from importlib import resources

from otpt.files import parse_toml
from otpt.medical import baple, fpt, promptsmooth
from otpt.methods import register_methods

__all__ = ["baple", "fpt", "promptsmooth"]

register_methods(parse_toml(resources.files(__package__).joinpath("methods.toml").read_text("utf-8")))
