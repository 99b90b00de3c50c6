from .cache import CacheInfo, FeatureCache, default_cache_folder
from .pipeline import EncodedImage, FeaturePipeline, ImageTask

__all__ = [
    "CacheInfo",
    "EncodedImage",
    "FeatureCache",
    "FeaturePipeline",
    "ImageTask",
    "default_cache_folder",
]
