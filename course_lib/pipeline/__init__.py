"""Pipeline parallelism: schedules as data, and the executor that runs them on real ranks."""
