"""Fetching one file over HTTP so that it arrives whole or not at all.

The bytes go to `<name>.part` beside the target and are kept across attempts and calls: a cut
connection continues where it stopped. Only a complete, checked file gets its final name.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tidegraph.errors import DownloadError

Progress = Callable[[int, int | None], None]
"""Called with the bytes on disk and the bytes expected (None where the server does not say)."""

_CHUNK_BYTES = 1 << 18
_LONGEST_PAUSE = 30.0
# The server may mend itself: asked again. Any other refusal is final.
_PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class RetryPolicy:
    """How long to keep trying.

    Attributes:
        timeout: seconds without a byte after which a connection counts as dead.
        attempts: connections in a row that brought no new byte before giving up, at least 1.
        pause: seconds before the second attempt, doubled for each one after, 30 at most.
    """

    timeout: float = 30.0
    attempts: int = 3
    pause: float = 0.5


class _InterruptedError(Exception):
    """An attempt that failed in a way that another may mend."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


def download(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    size: int | None = None,
    retry: RetryPolicy | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fetch `url` into the file `target`, resuming what an earlier attempt left.

    Args:
        url: http or https address.
        target: the file to create; its directory is made when missing.
        sha256: expected digest in hex, or None where it is not known.
        size: expected number of bytes, or None.
        retry: timeout and number of attempts.
        progress: called after every chunk.

    Returns:
        `target`, complete.

    Raises:
        DownloadError: no network, refused by the server, not the expected content, or no room on
            the disk. The message names the URL and the path where a file got by hand belongs.

    >>> download("https://example.org/data.csv", Path("data.csv"))  # doctest: +SKIP
    PosixPath('data.csv')
    """
    retry = retry or RetryPolicy()
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(target.with_name(target.name + ".lock")):
            if target.exists():  # another process was faster
                return target
            _fetch_whole(url, target, part, retry, progress)
            _check(part, url, target, sha256, size)
            part.replace(target)
            _validator_file(part).unlink(missing_ok=True)
    except DownloadError:
        raise
    except OSError as error:
        raise DownloadError(f"cannot write {target}: {error.strerror or error}") from error
    return target


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def by_hand(url: str, target: Path) -> str:
    """The sentence that tells how to do without the download."""
    return f"Fetch {url} on any machine and put the file there by hand: {target}"


def _fetch_whole(
    url: str, target: Path, part: Path, retry: RetryPolicy, progress: Progress | None
) -> None:
    fruitless = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            _fetch_some(url, part, retry.timeout, progress)
            return
        except _InterruptedError as interruption:
            after = part.stat().st_size if part.exists() else 0
            fruitless = fruitless + 1 if after <= before else 1
            if fruitless >= retry.attempts:
                kept = f" ({after:,} bytes are kept and will be continued)" if after else ""
                raise DownloadError(
                    f"cannot download {url}: {interruption}{kept}. {by_hand(url, target)}"
                ) from interruption
            pause = retry.pause * 2.0 ** (fruitless - 1)
            time.sleep(min(max(pause, interruption.pause or 0.0), _LONGEST_PAUSE))
        except urllib.error.HTTPError as error:
            raise DownloadError(
                f"cannot download {url}: the server answered {error.code} {error.reason}. "
                f"{by_hand(url, target)}"
            ) from error


def _fetch_some(url: str, part: Path, timeout: float, progress: Progress | None) -> None:
    """One connection: append to `part` until the server's end of file."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(
        url, headers={"User-Agent": "tidegraph", **_resume(part, have)}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            have = have if _continues(response, have) else 0
            total = _total_bytes(response, have)
            _remember_validator(part, response)
            _copy(response, part, have, total, progress)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is left to ask for, or the file is another one
            if _complete_length(error.headers.get("Content-Range")) == have:
                return
            part.unlink()
            raise _InterruptedError("the file on the server has changed") from error
        if error.code in _PASSING_STATUS:
            reason = f"the server answered {error.code} {error.reason}"
            raise _InterruptedError(reason, _seconds(error.headers.get("Retry-After"))) from error
        raise
    except urllib.error.URLError as error:
        raise _InterruptedError(f"no connection ({error.reason})") from error
    except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
        raise _InterruptedError(
            f"the connection broke ({error or type(error).__name__})"
        ) from error


def _copy(
    response: http.client.HTTPResponse,
    part: Path,
    have: int,
    total: int | None,
    progress: Progress | None,
) -> None:
    with part.open("ab" if have else "wb") as file:
        while chunk := response.read1(_CHUNK_BYTES):
            file.write(chunk)
            have += len(chunk)
            if progress is not None:
                progress(have, total)
    if total is not None and have < total:
        raise _InterruptedError(f"the connection ended after {have:,} of {total:,} bytes")


def _resume(part: Path, have: int) -> dict[str, str]:
    """Headers that ask for the rest of the same file; a changed one then comes whole."""
    if not have:
        return {}
    headers = {"Range": f"bytes={have}-"}
    try:
        validator = json.loads(_validator_file(part).read_text())["validator"]
    except (OSError, ValueError, KeyError):
        return headers
    return {**headers, "If-Range": str(validator)}


def _remember_validator(part: Path, response: http.client.HTTPResponse) -> None:
    etag = response.headers.get("ETag", "")
    weak = not etag or etag.startswith("W/")  # a weak tag does not promise equal bytes
    validator = response.headers.get("Last-Modified") if weak else etag
    if validator:
        _validator_file(part).write_text(json.dumps({"validator": validator}))
    else:
        _validator_file(part).unlink(missing_ok=True)


def _validator_file(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _continues(response: http.client.HTTPResponse, have: int) -> bool:
    """The server sends the rest, not the whole file again."""
    return response.status == 206 and _range_start(response.headers.get("Content-Range")) == have


def _range_start(content_range: str | None) -> int | None:
    try:
        return int((content_range or "").split()[1].split("-")[0])
    except (IndexError, ValueError):
        return None


def _complete_length(content_range: str | None) -> int | None:
    try:
        return int((content_range or "").rsplit("/", 1)[1])
    except (IndexError, ValueError):
        return None


def _total_bytes(response: http.client.HTTPResponse, have: int) -> int | None:
    length = response.headers.get("Content-Length")
    return have + int(length) if length and length.isdigit() else None


def _seconds(retry_after: str | None) -> float | None:
    return float(retry_after) if retry_after and retry_after.isdigit() else None


def _check(part: Path, url: str, target: Path, sha256: str | None, size: int | None) -> None:
    """Refuse, and remove, a complete file that is not the expected one."""
    found_size = part.stat().st_size
    problem = ""
    if size is not None and found_size != size:
        problem = f"{found_size:,} bytes, expected {size:,}"
    elif sha256 is not None and (found := file_sha256(part)) != sha256:
        problem = f"sha256 {found}, expected {sha256}"
    if problem:
        part.unlink()
        _validator_file(part).unlink(missing_ok=True)
        raise DownloadError(
            f"{url} gave another file than expected ({problem}); it was removed. Try again, or: "
            f"{by_hand(url, target)}"
        )


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """One process at a time writes the `.part` file; the others wait and find it done."""
    try:
        import fcntl
    except ImportError:  # not on this system: the atomic rename still keeps the target whole
        yield
        return
    while True:
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_still(lock, file):  # removed by the one waited for: take the new one
                continue
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def _is_still(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
