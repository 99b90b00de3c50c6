"""Evaluation at scale: all methods in one pass, every row kept, nothing lost when it is stopped.

    from otpt.data import load_dataset
    from otpt.evaluation import Settings, evaluate
    from otpt.features import FeatureCache

    result = evaluate(load_dataset("dtd", root="data"), otpt.load_backbone("ViT-B-16/openai"),
                      Settings(methods=["zero-shot", "o-tpt"]), out="runs/dtd", cache=FeatureCache())

The same call resumes a run that was stopped, and computes only what is missing.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
