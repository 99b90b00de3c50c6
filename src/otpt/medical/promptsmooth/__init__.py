"""PromptSmooth: a prompt tuned for each picture on Gaussian copies of it, then randomised smoothing with a certificate.

*Source:* Hussein et al., MICCAI 2024; the certificate is Cohen et al.'s, ICML 2019.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
