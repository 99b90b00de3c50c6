"""Systems and named methods of the plugin."""

from importlib import resources

from otpt.files import parse_toml
from otpt.methods import register_methods
from otpt_medical import baple, fpt, promptsmooth  # noqa: F401 (their decorators register the systems)

register_methods(parse_toml(resources.files(__package__).joinpath("methods.toml").read_text("utf-8")))
