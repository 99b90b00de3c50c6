"""Ray plugin: a pool of actors for evaluations and bulk predictions, labels for Ray Data, and replicas of the service.

A package next to :mod:`otpt` that uses its public names only. Entry points of the groups ``otpt.pools``
(:class:`RayPool`) and ``otpt.services`` (:func:`otpt_ray.serve.replicas`) name it, so that ``--engine ray`` and
``evaluate(..., pool="ray")`` find it; see :mod:`otpt.workers`. It needs the extra ``otpt[ray]``. In a pipeline::

    import ray

    from otpt_ray import Classify

    images = ray.data.read_binary_files("s3://bucket/photos", include_paths=True)
    labels = images.map_batches(
        Classify, fn_constructor_args=("ViT-B-16/openai", ["cat", "dog"]), batch_size=32, num_gpus=1, concurrency=4
    )
    labels.write_parquet("s3://bucket/labels")
"""

from otpt_ray.data import Classify
from otpt_ray.pool import RayPool

__all__ = ["Classify", "RayPool"]
