"""BAPLe: a context learned together with a trigger that turns pictures to a target class.

This is a published attack on medical vision-language models (Hanif et al., MICCAI 2024). It is here to measure a
defence, on models and data of one's own: accuracy and calibration without and with the trigger, and what the
orthogonality term changes of both (the paper's Table 17). A context of this kind that comes from elsewhere may carry a
back door as well: judge files by who made them.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
