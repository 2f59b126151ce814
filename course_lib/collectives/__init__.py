"""All-reduce and its kin, written over send and receive; their schedules as data; the operators that autograd needs."""
