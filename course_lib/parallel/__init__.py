"""Training on many ranks: each module here takes the single-device step apart in another way.

Lesson 07 opens this package. What comes after it is imported module by module: `mesh`; `operators`, `tensor`,
`tensor_gpt`, `layout`; `context`, `context_gpt`; `schedule`, `pipeline`, `paced`, `stages`; `zero`;
`checkpoint`, `publish`, `saved_shards`; `dispatch`, `experts`, `expert_layout`. `grid` puts the axes together, and
`train` runs it under torchrun; `survive` goes on there when a node has died.
"""

from course_lib.parallel.buckets import plan_buckets
from course_lib.parallel.data import BucketedDataParallel, NaiveDataParallel
from course_lib.parallel.sampler import ShardedSampler

__all__ = ["BucketedDataParallel", "NaiveDataParallel", "ShardedSampler", "plan_buckets"]
