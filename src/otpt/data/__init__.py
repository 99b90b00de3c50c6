"""Images with labels: the paper's data sets, the emoji bench, and your own.

>>> data = load_dataset("dtd", root="data")               # doctest: +SKIP
>>> data.class_names[data[0].label], data[0].source       # doctest: +SKIP
('banded', PosixPath('data/dtd/images/banded/banded_0060.jpg'))
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
