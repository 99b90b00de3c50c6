"""otpt: calibrated test-time adaptation of CLIP-like models.

    import otpt

    clf = otpt.load("ViT-B-16/openai", method="o-tpt")
    clf.set_classes(["abyssinian", "beagle", "pug"])     # text features, computed once
    prediction = clf.predict("dog.jpg")                  # prediction.label, .confidence, .probabilities

The public names are listed in ``__init__.pyi``; each is imported when it is first used.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
