"""FPT: a small side network learns from the keys and values of a large ViT that stays frozen.

*Source:* Huang et al., MICCAI 2024. There are no texts in it, so the paper's "FPT + O-TPT" leaves open what is made
orthogonal; here it is the rows of the classifier by default, or the prompts of each block (see ``docs/medical.md``).
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
