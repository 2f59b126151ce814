"""Imports of ranks in tests: once, in the process that they are forked from, instead of half a second in each.

A group of ranks is replaced after every failure, and hundreds of tests are about answers that fail.
"""

from __future__ import annotations

import importlib
import pkgutil

import pytest  # noqa: F401  (the tests' modules, which ranks read, begin with it)
import torch._dynamo  # noqa: F401  (imported by PyTorch when a dispatch mode sees its first operation)

import course_kit.checks
import course_kit.measure
import course_lib.parallel
import course_lib.train

for package in (course_kit.checks, course_kit.measure, course_lib.parallel, course_lib.train):
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
