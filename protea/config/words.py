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
    "method": "the method's own",
    "head": "classifier",
    "head_own": "classifier, own classes",
    "global_prototypes": "nearest global prototype",
    "global_prototypes_own": "nearest global prototype, own classes",
    "local_prototypes": "nearest of the client's own prototypes",
    "blend": "all of these and class frequencies, weighed on validation samples",
}

SCOPES = {  # whose samples are answered, and by whom
    "own": "clients' own test samples",
    "ensemble": "shared test set, all clients together",
    "shared": "shared test set, mean of the clients",
    "server": "shared test set, the server's model",
}

WEIGHTINGS = {"weighted": "every sample once", "uniform": "every client once"}

MEASURES = {
    "accuracy": "accuracy",
    "balanced": "balanced accuracy",
    "macro_f1": "macro F1",
    "calibration": "calibration error",
}
LOWER_IS_BETTER = ("calibration",)  # of the measures

ALONE, PROTECTED, ATTACKED = "alone", "protected", "attacked"  # stand behind the name of a method that is played so


def label_with(method: str, alone: bool, protect: bool, attacked: bool = False) -> str:
    """Return the name of a method as it is played.

    >>> label_with("fedproto", alone=True, protect=False)
    'fedproto alone'
    """
    played = {ATTACKED: attacked, ALONE: alone, PROTECTED: protect}
    return " ".join([method, *(word for word, so in played.items() if so)])


PARTS = {"test": "test samples", "validation": "validation samples"}  # of a client, that it is evaluated on
