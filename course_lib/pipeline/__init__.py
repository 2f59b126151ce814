"""Pipeline parallelism: schedules as data, and the executor that runs them on real ranks.

    schedule.orders    a Schedule: each rank's list of actions; `problems` checks it, `simulate` plays it on paper
         v
    executor           one action after the other, on this rank's stages:
         |               wait for its message -> F, B, W, BW or U on a stage -> send its result
         v                    ^                                                       |
    messages                  `-------------- the neighbouring ranks <----------------'

`stages` cuts a GPT into stages; `weight_gradients` splits a backward pass (BW) into B and W.
"""
