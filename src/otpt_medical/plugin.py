"""The systems of the plugin; importing their modules registers them."""

from otpt_medical.baple import Baple
from otpt_medical.fpt import Fpt
from otpt_medical.promptsmooth import PromptSmooth

__all__ = ["Baple", "Fpt", "PromptSmooth"]
