"""Selection of the configured key reader, and keys in files."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import plugin_packages

from pybroker.config import BrokerConfig, ConfigError
from pybroker.encryption.configured_keys import configured_key_reader
from pybroker.encryption.crypto_key_reader import PublicKey
from pybroker.encryption.key_directory import KeyDirectory

SOURCE = """
from pybroker.encryption.crypto_key_reader import CryptoKeyReader, PublicKey

class Fine(CryptoKeyReader):
    def public_key(self, name):
        return PublicKey(b"public " + name.encode())

    def private_key(self, name, metadata):
        return None

class Fails(Fine):
    @classmethod
    def create(cls, config):
        raise RuntimeError("the vault is closed")

class Abstract(CryptoKeyReader): pass

class Other: pass
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"pybroker.crypto_key_readers": {"vault": "keys_under_test:Fine"}}
    monkeypatch.syspath_prepend(plugin_packages.install(tmp_path / "plugins", "keys_under_test", SOURCE, points))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", ["vault", "keys_under_test:Fine"])
def test_key_reader_is_an_entry_point_or_a_class(name: str) -> None:
    reader = configured_key_reader(BrokerConfig(crypto_key_reader_factory_class_name=name))
    assert reader is not None
    assert reader.public_key("k") == PublicKey(b"public k")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("unknown", "not supported"),
        ("no_such_module:Fine", "cannot be imported"),
        ("keys_under_test:Fails", "the vault is closed"),
        ("keys_under_test:Abstract", "lacks private_key, public_key"),
        ("keys_under_test:Other", "not a subclass"),
        ("files", "needs cryptoKeyDirectory"),
    ],
)
def test_unusable_key_reader_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        configured_key_reader(BrokerConfig(crypto_key_reader_factory_class_name=name))


def test_no_key_reader_is_configured_by_default() -> None:
    assert configured_key_reader(BrokerConfig()) is None


def test_directory_of_keys_must_exist(tmp_path: Path) -> None:
    config = BrokerConfig(crypto_key_reader_factory_class_name="files", crypto_key_directory=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="is not a directory"):
        configured_key_reader(config)


def test_keys_are_read_from_files_of_their_name(tmp_path: Path) -> None:
    (tmp_path / "a.public.pem").write_bytes(b"public")
    (tmp_path / "a.private.pem").write_bytes(b"private")
    reader = KeyDirectory(tmp_path)
    assert reader.public_key("a") == PublicKey(b"public")
    assert reader.private_key("a", {}) == b"private"
    (tmp_path / "a.public.pem").write_bytes(b"replaced")
    assert reader.public_key("a") == PublicKey(b"replaced")
    assert reader.public_key("b") is None
    assert reader.private_key("b", {}) is None


@pytest.mark.parametrize("name", ["", "../a", "x/../../a", "/etc/a", "..\\a", "a\0", "a" * 1000, "\n", "é" * 200])
def test_name_of_a_client_does_not_lead_out_of_the_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.public.pem").write_bytes(b"public")
    (tmp_path / "keys").mkdir()
    assert KeyDirectory(tmp_path / "keys").public_key(name) is None
