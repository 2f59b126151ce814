"""What lesson 15 and its lab show: meters of memory, other libraries' restarts, a job on a cluster, the explorer."""
