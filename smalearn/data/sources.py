"""Where a public file comes from and how it gets here: a folder of yours, the cache or the network, always checked."""

import functools
import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = "SMALEARN_DATA"
"""The environment variable that names a folder with the files, for a machine without network."""


TIMEOUT = 20
"""Seconds that a server may be silent."""


class UnreachableError(Exception):
    """A public file cannot be reached from here; the message says why, in a few words."""


@dataclass(frozen=True)
class Source:
    """Name, origin and licence of data, for whoever shows results that were made with them.

    Args:
        name: short, as the loaders take it; another than the one asked for where that could not be had.
        sentence: where they come from, and, where they stand in for others, why.
        licence: under which they may be used.
        sha256: of the bytes, or of what stands in for them.
    """

    name: str
    sentence: str
    licence: str
    sha256: str


@dataclass(frozen=True)
class PublicFile:
    """A file of a public repository, known to the last bit; `file` is its name in `SMALEARN_DATA` and the cache."""

    source: Source
    file: str
    url: str
    size: int


def fetch(function: str, target: PublicFile) -> bytes:
    """The bytes of a public file: from the folder `SMALEARN_DATA` if that is set, else from the cache or the network.

    Only what cannot be reached, an UnreachableError, is left to the caller to replace. A file that is there and is
    another one is a ValueError: it would give other results under the same name. It takes pooch, which downloads once
    and keeps the file in `pooch.os_cache("smalearn")`; where that cannot be written, it is one download for each
    process.
    """
    folder = os.environ.get(FOLDER)
    if not folder:
        return _download(function, target)
    path = Path(folder) / target.file
    if not path.is_file():
        raise ValueError(f"{function}: {FOLDER} must have the file {target.file}, got none in {folder}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{function}: {path} must be readable, got {error.strerror}") from error
    return _checked(function, target, content, path)


def _download(function, target):
    """Read a file from the cache, or fetch it into the cache: anew if another file is there."""
    try:
        import pooch
        import requests
    except ImportError as error:
        message = f'{function}: {target.file} needs pooch, got none; pip install "smalearn[lab]", or set {FOLDER}'
        raise ImportError(message) from error
    logger, level = pooch.get_logger(), pooch.get_logger().level
    logger.setLevel("WARNING")  # "Downloading data from …" would stand in a chapter, the first time only
    try:
        return _retrieved(pooch, requests, target)
    except requests.exceptions.ChunkedEncodingError as error:
        expected = f"{target.file}, expected {target.size} bytes"
        raise ValueError(f"{function}: the download of {expected}, broke off: {error}; try again") from error
    except requests.exceptions.HTTPError as error:
        raise UnreachableError(f"the server answered {error.response.status_code}") from error
    except requests.exceptions.RequestException as error:
        raise UnreachableError("there is no connection") from error
    except OSError as error:
        reason = f"{error.strerror}; free some room, or set {FOLDER} to a folder that has it"
        raise ValueError(f"{function}: {target.file} cannot be stored, {reason}") from error
    except ValueError as error:  # another checksum
        reason = str(error).partition(". ")[0]
        raise ValueError(f"{function}: {target.url} is not {target.file} as it should be; {reason}") from error
    finally:
        logger.setLevel(level)


def _retrieved(pooch, requests, target):
    """Contents of the file, kept in the cache; where that cannot be written, until this process ends."""
    kept = {"known_hash": f"sha256:{target.source.sha256}", "fname": target.file}
    kept["downloader"] = pooch.HTTPDownloader(timeout=TIMEOUT)
    try:
        return Path(pooch.retrieve(target.url, path=pooch.os_cache("smalearn"), **kept)).read_bytes()
    except requests.exceptions.RequestException:  # an OSError too, but none of the cache
        raise
    except OSError:
        return Path(pooch.retrieve(target.url, path=_folder_of_this_process().name, **kept)).read_bytes()


@functools.cache
def _folder_of_this_process():
    """A temporary folder, which goes when the process ends."""
    return tempfile.TemporaryDirectory(prefix="smalearn-")


def _checked(function, target, content, path):
    """Check size and checksum of the content, and return it."""
    if len(content) != target.size:
        raise ValueError(f"{function}: {path} must have {target.size} bytes, got {len(content)}")
    checksum = hashlib.sha256(content).hexdigest()
    if checksum != target.source.sha256:
        raise ValueError(f"{function}: {path} must have the sha256 {target.source.sha256}, got {checksum}")
    return content
