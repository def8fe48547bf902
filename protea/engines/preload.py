"""Imported once by the forkserver, so that every worker process starts with all this in place."""

import os

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # huge pages for large tensors; torch asks once, so before it

import torch._dynamo  # the first optimizer of a process would import it, which takes seconds
import torch.optim

import protea.recipe
import protea.worker

__all__ = ["protea", "torch"]
