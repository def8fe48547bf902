"""Imported once by the forkserver, so that every worker process starts with it in place."""

import torch._dynamo  # the first optimizer of a process imports it: seconds
import torch.optim

import protea.recipe
import protea.worker  # noqa: F401
