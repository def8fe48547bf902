"""Which of a SuperNode's words mean that no other try will help, and what is told of the audit log."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="lacking: extra flower")

from protea.core.errors import ProteaError
from protea.network.site.join import hint_of, news_of, refuse_for_ever


@pytest.mark.parametrize(
    "words",
    [
        "httpx.ConnectError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate",
        "ssl.SSLCertVerificationError: certificate verify failed: Hostname mismatch",
        "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)",
    ],
)
def test_another_server_is_refused_for_ever(words: str) -> None:
    with pytest.raises(ProteaError, match="The server's certificate is not one of this federation's"):
        refuse_for_ever(f"INFO: Starting\nERROR: {words}")


@pytest.mark.parametrize(
    "words",
    [
        "[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol",
        "Using the root certificate at bundle/ca.crt",
        "[Errno 111] Connection refused",
        "SuperNode is not registered",
    ],
)
def test_a_server_that_was_stopped_may_come_back(words: str) -> None:
    refuse_for_ever(f"INFO: Starting\nERROR: {words}")


@pytest.mark.parametrize("words", ["certificate is not yet valid", "certificate has expired"])
def test_a_certificate_out_of_its_time_hints_at_the_clock(words: str) -> None:
    with pytest.raises(ProteaError, match="Look at the clock"):
        refuse_for_ever(f"[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {words} (_ssl.c:1006)")


def test_a_clock_that_is_wrong_is_not_taken_for_an_unknown_key() -> None:
    said = hint_of("401: signed by another clock; here it is 2026-11-18T12:00:00+00:00")
    assert "its clock says 2026-11-18T12:00:00+00:00" in said and "key" not in said
    assert "does not know its key yet" in hint_of("401: unknown key")


def test_the_process_that_watches_over_a_site_has_no_torch() -> None:
    """It would need 250 MB in the place of 34, and seconds to start."""
    words = "import sys, protea.cli.site, protea.network.site.join; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", words], capture_output=True, text=True).stdout == "False\n"


def test_what_was_sent_and_what_was_refused_is_told() -> None:
    sent = {"round": 2, "task": "train", "bytes": 1234, "blake2b": "ab"}
    assert news_of(sent) == "Sent in round 2: train, 1,234 bytes, ab"
    refused = {
        **sent,
        "task": "refused",
        "asked": "train",
        "policy": "policy.toml, line 3: x = 1",
        "words": "Too much.",
    }
    assert news_of(refused) == "Refused in round 2: train.  policy.toml, line 3: x = 1  Too much."
