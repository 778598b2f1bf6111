"""Posteriors on disk: safetensors and JSON, atomic, checksummed, and never any code."""

from .behaviour import behaviour, unlike
from .codec import decode, describe, encode, fingerprint
from .files import FileError, read_json, read_tensors, write_json, write_tensors
from .pool import Pool, PoolEntry
from .records import append_record, read_records

__all__ = [
    "FileError",
    "Pool",
    "PoolEntry",
    "append_record",
    "behaviour",
    "decode",
    "describe",
    "encode",
    "fingerprint",
    "read_json",
    "read_records",
    "read_tensors",
    "unlike",
    "write_json",
    "write_tensors",
]
