"""What a prediction costs, from shapes alone: operations, bytes, memory, synchronisations; and how long that takes.

The public names are listed in ``__init__.pyi``; each is imported when it is first used. No weights are loaded, and
torch is imported only for image towers that are neither ViT, CLIP's ResNet nor SigLIP's.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
