"""The words by which an accuracy is chosen, each with what it means: one place for commands, tables and reports."""

from __future__ import annotations

from typing import Literal

Protocol = Literal["validation", "final", "last5", "best"]
PROTOCOLS: dict[str, str] = {  # which round's numbers are reported
    "validation": "round chosen on validation samples",
    "final": "last round",
    "last5": "mean of the last five evaluations",
    "best": "best round on these very samples",
}

RULES = {  # which scores answer
    "method": "as the method itself answers",
    "head": "by the classifier",
    "head_own": "by the classifier, among the client's own classes",
    "global_prototypes": "by the nearest global prototype",
    "global_prototypes_own": "by the nearest global prototype of the client's own classes",
    "local_prototypes": "by the nearest prototype of the client's own training samples",
}

SCOPES = {  # whose samples are answered, and by whom
    "own": "the clients' own test samples",
    "ensemble": "all clients together on the shared test set",
    "shared": "each client by itself on the shared test set",
    "server": "the server's model on the shared test set",
}

WEIGHTINGS = {"weighted": "every sample counting once", "uniform": "every client counting once"}

MEASURES = {
    "accuracy": "accuracy",
    "balanced": "mean of the accuracies on each class",
    "macro_f1": "mean F1 of the classes",
    "calibration": "expected calibration error, 0 is best",
}
