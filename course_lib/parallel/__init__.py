"""Training on many ranks: each module takes the single-device step apart in one way; `hybrid` joins them."""

from course_lib.parallel.data import BucketedDataParallel, NaiveDataParallel, ShardedSampler, plan_buckets
