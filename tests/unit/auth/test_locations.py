"""Where keys may be configured to lie."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from pybroker.auth.locations import decoded_base64, read_location
from pybroker.config.keys import ConfigError

CONTENT = b"\x00\xffsecret content\n"


def test_every_form_of_location_leads_to_the_same_content(tmp_path: Path) -> None:
    path = tmp_path / "a key.bin"
    path.write_bytes(CONTENT)
    encoded = base64.b64encode(CONTENT).decode()
    for location in (
        str(path),
        path.as_uri(),
        f"data:;base64,{encoded}",
        f"data:application/octet-stream;base64,{encoded}",
        "data:,%00%FFsecret%20content%0A",
        encoded,
        base64.urlsafe_b64encode(CONTENT).decode().rstrip("="),
    ):
        assert read_location("someKey", location) == CONTENT


@pytest.mark.parametrize(
    "location", ["data:text/plain;base64,", "data:;base64,***", "data:abcd", "no such file!", "x" * 5000 + "!"]
)
def test_a_location_that_leads_nowhere_is_refused_without_showing_it(location: str) -> None:
    with pytest.raises(ConfigError, match="someKey") as caught:
        read_location("someKey", location)
    assert location not in str(caught.value)


def test_a_file_url_without_its_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_location("someKey", (tmp_path / "missing").as_uri())


def test_base64_is_told_from_other_bytes() -> None:
    assert decoded_base64(b"AAEC\n Aw==") == b"\x00\x01\x02\x03"
    assert decoded_base64(b"-_-_") == base64.b64decode(b"+/+/")
    for other in (b"", b" ", b"\x30\x82\x01", b"a", b"a:b"):
        assert decoded_base64(other) is None
