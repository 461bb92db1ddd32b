"""Key pairs to sign with, each in two files."""

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


def write_keys(folder, curve=ec.SECP256R1, password=None):
    """Makes a key pair; returns the places of the private and the public key."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(curve())
    hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    private, public = folder / "signing.pem", folder / "signing.pub"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden),
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return str(private), str(public)
