"""From run folders to insight: tables in the paper's layouts, the paper's numbers, comparisons. No model is needed.

>>> results = open_results([Path("runs/main")])                                    # doctest: +SKIP
>>> print(render(build_tables(results, "main"), "markdown"))                       # doctest: +SKIP
>>> compare_methods(results, "o-tpt", "c-tpt")[-1].of("ece").p                     # doctest: +SKIP
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
