"""Configured locations of keys."""

from __future__ import annotations

import base64
import random
from pathlib import Path

import pytest

from pybroker.auth.locations import decoded_base64, looks_like_path, read_location
from pybroker.config.setting_types import ConfigError

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


MISSING_FILES = [
    "/etc/pybroker/credentials/production/tokensecretkey",
    "/nonesuch/pulsar/secrets/TokenSecretKeyOfProduction",
    "credentials/pulsar/production/secretkeyofthecluster1",
    "./credentials/pulsar/Q1x8Z/7kQ2pL/9vB3nM4xY6wR5tU8sK1j",
    "~/token",
    "../keys/token",
    "conf/token.key",
    "token.key",
    "secret.key.bin",
]


@pytest.mark.parametrize("location", MISSING_FILES)
def test_a_file_that_is_not_there_is_named_and_never_the_secret_itself(location: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_location("tokenSecretKey", location)
    assert f"tokenSecretKey cannot be read: the file {location} does not exist." in str(caught.value)


def test_a_name_in_a_directory_that_exists_is_a_path_however_it_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    location = "a8B1cD/Zq7Kp2Lx9Vb3Nm4Yw6Rt5Us8Qj1Hf0Ge2Dc4Xa6Wz8x"
    assert len(read_location("tokenSecretKey", location)) > 32  # ambiguous: any result is correct
    (tmp_path / "a8B1cD").mkdir()
    with pytest.raises(ConfigError, match="file a8B1cD/"):
        read_location("tokenSecretKey", location)


@pytest.mark.parametrize("size", [32, 48, 64])
def test_random_base64_text_is_no_path(size: int) -> None:
    seeded = random.Random(7)
    texts = [base64.b64encode(seeded.randbytes(size)).decode() for _ in range(2000)]
    texts += ["/" + text[1:] for text in texts] + [text.rstrip("=") for text in texts]
    found = [text for text in texts if looks_like_path(text)]
    assert len(found) <= len(texts) / 1000
    assert not any(looks_like_path(seeded.randbytes(size).hex()) for _ in range(100))


def test_a_file_url_with_a_host_is_refused_rather_than_read_without_it() -> None:
    with pytest.raises(ConfigError, match=r"file://keys/token\.key contains a host"):
        read_location("tokenSecretKey", "file://keys/token.key")


def test_base64_is_told_from_other_bytes() -> None:
    assert decoded_base64(b"AAEC\n Aw==") == b"\x00\x01\x02\x03"
    assert decoded_base64(b"-_-_") == base64.b64decode(b"+/+/")
    for other in (b"", b" ", b"\x30\x82\x01", b"a", b"a:b"):
        assert decoded_base64(other) is None
