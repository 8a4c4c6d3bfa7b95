"""Downloads against a server of our own: whole, cut, resumed, refused, changed, wrong."""

from __future__ import annotations

import hashlib
import http.server
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tidegraph.errors import DownloadError
from tidegraph.events.download import RetryPolicy, download, file_sha256

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
QUICK = RetryPolicy(timeout=5.0, attempts=2, pause=0.0)


@dataclass
class Server:
    """What the server offers, how it misbehaves, and what it was asked."""

    url: str = ""
    content: bytes = CONTENT
    etag: str = '"one"'
    cut_after: list[int] = field(default_factory=list)  # body bytes sent before hanging up
    statuses: list[int] = field(default_factory=list)  # answered first, one a request
    ranges: bool = True
    asked: list[dict[str, str]] = field(default_factory=list)


def _handler(state: Server) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(dict(self.headers))
            if state.statuses:
                self.send_error(state.statuses.pop(0))
                return
            start = 0
            asked = self.headers.get("Range")
            same = self.headers.get("If-Range") in (None, state.etag)
            if asked and state.ranges and same:
                start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start and start >= len(state.content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(state.content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body = state.content[start:]
            self.send_response(206 if start else 200)
            if start:
                last = len(state.content) - 1
                self.send_header("Content-Range", f"bytes {start}-{last}/{len(state.content)}")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", state.etag)
            self.end_headers()
            sent = state.cut_after.pop(0) if state.cut_after else len(body)
            self.wfile.write(body[:sent])

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = Server()
    http_server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    thread = threading.Thread(target=http_server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{http_server.server_address[1]}/file.csv"
    yield state
    http_server.shutdown()
    http_server.server_close()
    thread.join(5)
    assert not thread.is_alive()


def fetch(server: Server, target: Path, **options: object) -> Path:
    return download(server.url, target, retry=QUICK, **options)  # type: ignore[arg-type]


def leftovers(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_whole_file_arrives_and_nothing_else_stays(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    target = tmp_path / "deep" / "file.csv"
    path = fetch(
        server, target, sha256=SHA256, size=len(CONTENT), progress=lambda *at: seen.append(at)
    )
    assert path.read_bytes() == CONTENT
    assert leftovers(target.parent) == ["file.csv"]
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [have for have, _ in seen] == sorted({have for have, _ in seen})


def test_a_cut_connection_continues_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.cut_after = [300_000, 1]
    assert fetch(server, tmp_path / "file.csv", sha256=SHA256).read_bytes() == CONTENT
    assert [asked.get("Range") for asked in server.asked] == [
        None,
        "bytes=300000-",
        "bytes=300001-",
    ]


def test_a_later_call_continues_an_earlier_one(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file.csv"
    server.cut_after = [1000, 0, 0, 0]
    with pytest.raises(DownloadError, match=r"1,000 bytes are kept"):
        fetch(server, target, sha256=SHA256)
    assert not target.exists()
    server.cut_after.clear()
    assert fetch(server, target, sha256=SHA256).read_bytes() == CONTENT
    assert server.asked[-1]["Range"] == "bytes=1000-"


def test_a_file_that_changed_meanwhile_comes_whole(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file.csv"
    server.cut_after = [1000, 0, 0, 0]
    with pytest.raises(DownloadError):
        fetch(server, target)
    server.cut_after.clear()
    server.content, server.etag = CONTENT[::-1], '"two"'
    assert fetch(server, target).read_bytes() == CONTENT[::-1]


def test_a_server_without_ranges_is_read_from_the_start(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.cut_after = [1000]
    assert fetch(server, tmp_path / "file.csv", sha256=SHA256).read_bytes() == CONTENT


def test_a_part_that_is_complete_already_is_taken(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.csv.part").write_bytes(CONTENT)
    assert fetch(server, tmp_path / "file.csv", sha256=SHA256).read_bytes() == CONTENT


def test_a_part_longer_than_the_file_is_dropped(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.csv.part").write_bytes(CONTENT + b"more")
    assert fetch(server, tmp_path / "file.csv", sha256=SHA256).read_bytes() == CONTENT


def test_503_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.statuses = [503]
    assert fetch(server, tmp_path / "file.csv").read_bytes() == CONTENT
    assert len(server.asked) == 2


def test_503_for_ever_names_url_and_path(server: Server, tmp_path: Path) -> None:
    server.statuses = [503] * 10
    with pytest.raises(DownloadError) as caught:
        fetch(server, tmp_path / "file.csv")
    message = str(caught.value)
    assert "503" in message
    assert server.url in message
    assert f"put the file there by hand: {tmp_path / 'file.csv'}" in message
    assert len(server.asked) == QUICK.attempts


@pytest.mark.parametrize("status", [403, 404])
def test_a_refusal_is_final(server: Server, tmp_path: Path, status: int) -> None:
    server.statuses = [status] * 10
    with pytest.raises(DownloadError, match=f"answered {status}"):
        fetch(server, tmp_path / "file.csv")
    assert len(server.asked) == 1


def test_wrong_content_is_removed(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="gave another file than expected") as caught:
        fetch(server, tmp_path / "file.csv", sha256="0" * 64)
    assert SHA256 in str(caught.value)
    assert leftovers(tmp_path) == []


def test_wrong_size_is_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="1,024,000 bytes, expected 5"):
        fetch(server, tmp_path / "file.csv", size=5)


def test_no_connection_names_url_and_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as reserved:  # bound, not listening: connections are refused
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}/file.csv"
        with pytest.raises(DownloadError) as caught:
            download(url, tmp_path / "file.csv", retry=QUICK)
    assert "no connection" in str(caught.value)
    assert url in str(caught.value)
    assert str(tmp_path / "file.csv") in str(caught.value)


def test_a_silent_server_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file.csv"
        retry = RetryPolicy(timeout=0.1, attempts=1)
        with pytest.raises(DownloadError, match="timed out"):
            download(url, tmp_path / "file.csv", retry=retry)


def test_a_directory_that_cannot_be_written_is_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, not a directory")
    with pytest.raises(DownloadError, match=r"cannot write .*taken"):
        fetch(server, tmp_path / "taken" / "file.csv")


def test_a_target_that_exists_is_kept(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file.csv"
    target.write_bytes(b"mine")
    assert fetch(server, target).read_bytes() == b"mine"
    assert server.asked == []


def test_parallel_calls_share_one_download(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file.csv"
    threads = [threading.Thread(target=fetch, args=(server, target)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert target.read_bytes() == CONTENT
    assert len(server.asked) == 1


def test_digest_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    assert file_sha256(path) == SHA256
