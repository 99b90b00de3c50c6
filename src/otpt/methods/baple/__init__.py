"""BAPLe: prompt learning with a back door; the same images clean and with the trigger.

Back-door code is here to measure a defence on one's own model and data: how much a published attack changes accuracy
and calibration, and whether the orthogonality term helps against that.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
