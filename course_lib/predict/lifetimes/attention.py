"""Births and deaths in one attention layer: the S × S blocks that make long sequences expensive, and their company.

There are three ways through it. Written out ("explicit"), every product goes to memory. The fused kernel keeps q, k, v,
its result and one number a row. With dropout, the fused kernel for CPUs hands over to products again; a GPU's draws the
same random numbers twice and keeps no mask.
"""

from __future__ import annotations

from course_lib.model.gpt import GPTConfig
from course_lib.predict.lifetimes.ledger import BOOL, FLOAT, Ledger


class AttentionLifetimes:
    """What `model.gpt.Attention` makes, keeps and frees between its two projections.

    Sizes are in bytes and named by their shape: `self.BHSS` is a tensor of that shape, of `element` bytes a number.
    """

    def __init__(
        self, config: GPTConfig, batch_size: int, seq: int, ledger: Ledger, element: int = FLOAT, device: str = "cpu"
    ) -> None:
        self.ledger, self.seq, gpu = ledger, seq, device == "cuda"
        self.explicit, self.dropout = config.attention == "explicit", config.dropout > 0
        self.kernel = not self.explicit and (gpu or not self.dropout)
        self.rotary, self.one_head = config.positions == "rotary", config.heads == 1
        # A batched product wants each head in one piece of memory. With one head or one sequence, a view is enough;
        # the view keeps all of q, k and v alive.
        self.views = batch_size == 1 or self.one_head
        self.BSD = element * batch_size * seq * config.width
        self.BHS = FLOAT * batch_size * seq * config.heads  # one number a row stays in 32 bits
        self.BHSS, self.SS = element * batch_size * config.heads * seq**2, element * seq**2
        self.noise_BHSS = self.BHSS // element if gpu else self.BHSS
        self.sorts_heads = gpu and element == FLOAT  # the GPU's kernel for fp32 leaves the heads side by side
        self.angles = 4 * element * seq * config.head_width // 2  # cos and sin of every pair, for q and again for k

    def forward(self) -> None:
        """From the input of the first projection to the input of the second one."""
        ledger = self.ledger
        ledger.add("activations" if self.views or self.kernel else "temporaries", qkv=3 * self.BSD)
        if self.rotary:  # turning makes new blocks; the halves that it shuffles are never the peak, and left out
            scaled_later = "activations" if self.kernel else "temporaries"
            ledger.save(angles=self.angles)
            ledger.add(scaled_later, q_turned=self.BSD)
            ledger.add("activations" if self.explicit else scaled_later, k_turned=self.BSD)
        if not self.kernel:
            self._products()
            return
        ledger.save(mixed=self.BSD, log_sum_exp=self.BHS)  # the backward pass computes the scores again from these
        if self._flattens:
            ledger.save(mixed_flat=self.BSD)

    @property
    def _flattens(self) -> bool:
        """Whether the second projection reads a copy of `mixed`, with the heads side by side."""
        return not self.kernel or (self.rotary and not self.one_head and not self.sorts_heads)

    def _products(self) -> None:
        """softmax(q kᵀ) v. Each factor of a product is kept, for the gradient of the other one."""
        ledger, copies = self.ledger, not self.views and not self.rotary
        if self.explicit:
            ledger.save(mask=BOOL * self.seq**2)  # where the gradient is zero
            if copies:
                ledger.make(q_scaled=self.BSD)
            ledger.save(q=self.BSD)
            if copies:
                ledger.save(k=self.BSD)
        else:
            ledger.make(mask=self.SS)  # numbers to add: no gradient depends on them
            if copies:
                ledger.make(q_scaled=self.BSD, k_scaled=self.BSD)
            ledger.save(q=self.BSD, k=self.BSD)
        ledger.make(scores=self.BHSS)
        if copies:
            ledger.free("q_scaled")
        ledger.make(masked=self.BHSS)
        if not self.explicit:
            ledger.free("scores")
        ledger.save(weights=self.BHSS)  # softmax's gradient is a function of its result
        ledger.free("masked")
        if self.dropout:
            ledger.save(weights_noise=self.noise_BHSS)
            ledger.save(dropped_weights=self.BHSS)
        if not self.views:
            ledger.save(v=self.BSD)
        self._mix()
        if self.explicit:
            ledger.free("scores")
        else:
            ledger.free("mask", *(["k_scaled"] if copies else []))
        if not self.one_head:
            ledger.save(mixed_flat=self.BSD)
            ledger.free("mixed")

    def _mix(self) -> None:
        """The product with v: with one head it is laid out as the second projection wants it."""
        if self.one_head:
            self.ledger.save(mixed_flat=self.BSD)
        else:
            self.ledger.make(mixed=self.BSD)

    def forget_variables(self) -> None:
        """The method returns, and what its local variables alone held is freed."""
        if not (self.views or self.kernel):
            self.ledger.free("qkv")
        if self.rotary and not self.kernel:
            self.ledger.free("q_turned", *([] if self.explicit else ["k_turned"]))

    def input_of_projection(self) -> tuple[str, ...]:
        """What is freed once the second projection has its gradients (the kernel's own result is freed later)."""
        return ("mixed_flat",) if self._flattens else ()

    def backward(self) -> None:
        """From the gradient `d_mixed` to `d_qkv`."""
        ledger = self.ledger
        if self.kernel:
            ledger.make(d_q=self.BSD, d_k=self.BSD, d_v=self.BSD)
            ledger.free("d_mixed", "qkv", "mixed", "log_sum_exp")
            if self.rotary:
                ledger.free("q_turned", "k_turned")
        else:
            self._products_backward()
        if self.rotary:
            ledger.free("angles")
        ledger.make(d_qkv=3 * self.BSD)
        ledger.free("d_q", "d_k", "d_v")

    def _products_backward(self) -> None:
        """Each product of the forward pass has two here, one for each factor."""
        ledger = self.ledger
        if not self.views:
            ledger.make(d_mixed_heads=self.BSD)
            ledger.free("d_mixed")
        ledger.make(d_v=self.BSD)
        ledger.make(d_weights=self.BHSS)
        ledger.free("d_mixed" if self.views else "d_mixed_heads")
        k_is_view = self.views and self.explicit and not self.rotary
        if not k_is_view:
            ledger.free("qkv" if self.views else "v")
        if self.dropout:
            ledger.free("dropped_weights")
            ledger.make(d_weights_undropped=self.BHSS)
            ledger.free("weights_noise", "d_weights")
        ledger.make(d_masked=self.BHSS)
        ledger.free("d_weights_undropped" if self.dropout else "d_weights", "weights")
        if self.explicit:
            ledger.make(d_scores=self.BHSS)
            ledger.free("d_masked", "mask")
        ledger.make(d_k=self.BSD)
        ledger.make(d_q_scaled=self.BSD)
        ledger.free("d_scores" if self.explicit else "d_masked", "q")
        ledger.free("qkv" if k_is_view else "k_turned" if self.explicit and self.rotary else "k")
        ledger.make(d_q=self.BSD)
        ledger.free("d_q_scaled")
