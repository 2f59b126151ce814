"""Number formats: the numbers that 64, 32, 16, 8, 6, 4 bits and 1 bit can hold, and rounding to them."""

from course_lib.numerics.formats import (
    BF16,
    FORMATS,
    FP4_E2M1,
    FP6_E2M3,
    FP6_E3M2,
    FP8_E4M3FN,
    FP8_E5M2,
    FP16,
    FP32,
    FP64,
    TF32,
    TORCH_DTYPES,
    FloatFormat,
)
