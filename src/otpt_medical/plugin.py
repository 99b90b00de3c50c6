"""What the plugin registers: methods, systems, data sets and a source of models."""

from importlib import resources

from otpt.backbones import register_source
from otpt.files import parse_toml
from otpt.methods import register_methods
from otpt_medical import baple, data, fpt, promptsmooth  # noqa: F401 (their decorators register systems and data sets)
from otpt_medical.medclip import load_medclip

register_methods(parse_toml(resources.files(__package__).joinpath("methods.toml").read_text("utf-8")))
register_source(
    "medclip:FOLDER", "MedCLIP-ViT as published: pytorch_model.bin, and vocab.txt if available", load_medclip
)
