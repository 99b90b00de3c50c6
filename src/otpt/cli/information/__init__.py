"""Commands that say what there is: data sets, methods, models, the cache, this machine."""
