"""Pipeline from images to image features, and its cache on disk."""

from otpt.features.cache import CacheInfo, FeatureCache, default_cache_folder
from otpt.features.pipeline import EncodedImage, FeaturePipeline, ImageTask

__all__ = ["CacheInfo", "EncodedImage", "FeatureCache", "FeaturePipeline", "ImageTask", "default_cache_folder"]
