"""Every figure of the paper, and some more, from run folders.

    results = open_results([Path("runs/dtd")])
    save(draw("reliability", select(results)), Path("reliability.svg"))

The kinds of figures are the keys of ``FIGURES``.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
