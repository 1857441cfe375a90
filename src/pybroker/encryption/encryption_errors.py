"""Errors of encryption. Their texts never contain key material."""


class CannotEncrypt(Exception):
    """Messages cannot be encrypted. The text contains the name of the key and the reason."""


class CannotDecrypt(Exception):
    """A payload cannot be decrypted. The text contains the reason."""
