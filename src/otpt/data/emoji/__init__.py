"""The bench ``emoji``: compositions of OpenMoji's drawings, in eight sets and five shifts.

>>> data = load_emoji("emoji/animals")                        # doctest: +SKIP
>>> data.class_names[data.label(0)], data.image(0).size     # doctest: +SKIP
('monkey face', (128, 128))
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
