"""What can be learned from what a client sent: attacks on its uploads and replies, and a verdict for each class.

subject.py     what is attacked: the records, what left, and how the client is built anew
recorder.py    an engine that notes what leaves one client
from_run.py    the last rounds of a run, played again bit by bit
vectors.py     from a record to the vector that the method would send of it
separation.py  how well scores tell members from others: AUC, true positives, intervals
linkage.py     (1) is this record behind this vector, and which record is nearest to it
shadows.py     (1) the same with a calibrated test, by shadow models
inversion.py   (2) the input whose vector is the one that left
labels.py      (3) class sizes and label distribution
replies.py     (4) what evaluation replies say about single samples
verdict.py     findings, thresholds, verdicts
attack.py      all of these in order
"""

from protea.studies.audit.attack import AuditResult, attack, findings
from protea.studies.audit.from_run import subject_of_run
from protea.studies.audit.rehearsal import Rehearsal
from protea.studies.audit.subject import Subject
from protea.studies.audit.verdict import AuditFinding, Thresholds, most_telling, thresholds_from

__all__ = [
    "AuditFinding",
    "AuditResult",
    "Rehearsal",
    "Subject",
    "Thresholds",
    "attack",
    "findings",
    "most_telling",
    "subject_of_run",
    "thresholds_from",
]
