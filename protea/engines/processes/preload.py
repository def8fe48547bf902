"""Imported once by the forkserver, so that every worker process starts with all this in place."""

import torch._dynamo  # the first optimizer of a process would import it, which takes seconds
import torch.optim

import protea.clients.factory
import protea.clients.worker

__all__ = ["protea", "torch"]
