"""A public file comes from a folder, the cache or the network; another file is refused; what stands in says so."""

import hashlib
import http.server
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from smalearn.data import load_series, load_text
from smalearn.data import series as series_module
from smalearn.data import text as text_module
from smalearn.data.sources import FOLDER, PublicFile, Source, UnreachableError, fetch

CONTENT = b"to be, or not to be\n" * 100
CSV = b"date,A,OT\n2016-07-01 00:00:00,1.5,-2\n2016-07-01 01:00:00,0,30.25\n"


class Server(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT or CSV, half of it, something else, or a status; counts the visits."""

    visits = 0

    def do_GET(self):
        type(self).visits += 1
        kind = self.path.strip("/")
        content = {"csv": CSV, "other": b"<html>please log in</html>"}.get(kind, CONTENT)
        self.send_response(int(kind) if kind.isdigit() else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if kind == "half" else content)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def server():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, no folder, and no proxy before the server of these tests."""
    import pooch

    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cäche" / name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv(FOLDER, raising=False)
    return tmp_path / "cäche" / "smalearn"


def public(url="http://127.0.0.1:9", content=CONTENT, file="a.txt"):
    source = Source("name", "sentence", "licence", hashlib.sha256(content).hexdigest())
    return PublicFile(source, file, url, len(content))


# ---------------------------------------------------------------- the network and the cache


def test_a_download_is_kept_and_not_repeated(server, cache, capfd):
    visits = Server.visits
    for _ in range(2):
        assert fetch("load", public(f"{server}/whole")) == CONTENT
    assert Server.visits == visits + 1
    assert (cache / "a.txt").read_bytes() == CONTENT
    assert capfd.readouterr() == ("", "")  # a chapter's output is the same the first time and later


def test_a_spoilt_cache_is_mended(server, cache):
    cache.mkdir(parents=True)
    (cache / "a.txt").write_bytes(b"spoilt")
    assert fetch("load", public(f"{server}/whole")) == CONTENT
    assert (cache / "a.txt").read_bytes() == CONTENT


def test_what_was_fetched_needs_no_network(server, cache):
    fetch("load", public(f"{server}/whole"))
    assert fetch("load", public("http://127.0.0.1:9/whole")) == CONTENT


def test_another_file_is_refused_and_not_kept(server, cache):
    target = public(f"{server}/other")
    message = (
        rf"load: {server}/other is not a\.txt as it should be; SHA256.* expected sha256:{target.source.sha256} but got"
    )
    with pytest.raises(ValueError, match=message):
        fetch("load", target)
    assert not list(cache.iterdir())


def test_a_download_that_breaks_off_says_so(server, cache):
    with pytest.raises(ValueError, match=r"load: the download of a\.txt, expected 2000 bytes, broke off: .*1000 .*;"):
        fetch("load", public(f"{server}/half"))
    assert not list(cache.iterdir())


@pytest.mark.parametrize(
    ("path", "why"), [("/404", "the server answered 404"), ("/503", "the server answered 503"), (None, "no connection")]
)
def test_what_cannot_be_reached_says_why(server, path, why):
    with pytest.raises(UnreachableError, match=why):
        fetch("load", public(server + path) if path else public())


@pytest.mark.parametrize("obstacle", ["a file where its folder should be", "a file below it", "no permission"])
def test_a_cache_that_cannot_be_written_is_done_without(server, tmp_path, monkeypatch, obstacle):
    import pooch

    blocked = tmp_path / "blocked"
    if obstacle == "no permission":

        def refuse(path, **options):
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr("pooch.utils.os.makedirs", refuse)
    else:
        blocked.write_text("", encoding="utf-8")
    monkeypatch.setattr(
        pooch, "os_cache", lambda name: blocked if obstacle.startswith("a file where") else blocked / name
    )
    visits, target = Server.visits, public(f"{server}/whole", file=f"{len(obstacle)}.txt")
    for _ in range(2):
        assert fetch("load", target) == CONTENT
    assert Server.visits == visits + 1  # once for each process
    with pytest.raises(UnreachableError, match="there is no connection"):
        fetch("load", public("http://127.0.0.1:9", file="b.txt"))


def test_a_disk_without_any_room_is_one_sentence(monkeypatch):
    import pooch

    def full(url, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pooch, "retrieve", full)
    with pytest.raises(ValueError, match=f"load: a.txt cannot be stored, No space left on device; .*{FOLDER}"):
        fetch("load", public())


def test_pooch_keeps_what_it_would_log(server):
    import pooch

    level = pooch.get_logger().level
    with pytest.raises(UnreachableError):
        fetch("load", public())
    assert pooch.get_logger().level == level


def test_without_pooch_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ImportError, match=r'load: a\.txt needs pooch, got none; pip install "smalearn\[lab\]", or'):
        fetch("load", public())


# ---------------------------------------------------------------- the folder


def test_the_folder_comes_first(server, tmp_path, monkeypatch, cache):
    fetch("load", public(f"{server}/whole"))
    (cache / "a.txt").write_bytes(b"spoilt")
    (tmp_path / "a.txt").write_bytes(CONTENT)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    visits = Server.visits
    assert fetch("load", public(f"{server}/whole")) == CONTENT
    assert Server.visits == visits


def test_the_folder_must_have_the_file_and_no_other(tmp_path, monkeypatch):
    """Nothing stands in for a folder that was named: its owner believes that the file is there."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(ValueError, match=r"load: SMALEARN_DATA must have the file a\.txt, got none in "):
        fetch("load", public())
    (tmp_path / "a.txt").write_bytes(CONTENT[:-7])
    with pytest.raises(ValueError, match=r"load: .*a\.txt must have 2000 bytes, got 1993"):
        fetch("load", public())
    (tmp_path / "a.txt").write_bytes(CONTENT[:-1] + b"!")
    expected, got = (hashlib.sha256(x).hexdigest() for x in (CONTENT, CONTENT[:-1] + b"!"))
    with pytest.raises(ValueError, match=rf"load: .*a\.txt must have the sha256 {expected}, got {got}"):
        fetch("load", public())


# ---------------------------------------------------------------- the two loaders


@pytest.fixture
def small(monkeypatch):
    """The loaders, made to know two small files in place of the large ones."""

    def point(url):
        for module, name, content, kind in (
            (text_module, "SHAKESPEARE", CONTENT, ""),
            (series_module, "ETTH1", CSV, "csv"),
        ):
            known = getattr(module, name)
            source = replace(known.source, sha256=hashlib.sha256(content).hexdigest())
            monkeypatch.setattr(module, name, replace(known, source=source, url=f"{url}/{kind}", size=len(content)))

    return point


def test_the_loaders_give_what_the_files_have(server, small):
    small(server)
    text, series = load_text(), load_series()
    assert text.text.encode() == CONTENT
    assert (text.source.name, series.source.name) == ("tinyshakespeare", "ETTh1")
    assert "char-rnn" in text.source.sentence
    assert "CC BY-ND" in series.source.licence
    assert series.columns == ("A", "OT")
    assert torch.equal(series.values, torch.tensor([[1.5, -2.0], [0.0, 30.25]]))


@pytest.mark.parametrize("load", [load_text, load_series])
def test_what_stands_in_says_so(load, small):
    small("http://127.0.0.1:9")
    requested = load.__defaults__[0]
    other = {"tinyshakespeare": "python topics", "ETTh1": "seasonal"}[requested]
    loaded, expected = load(), load(other)
    assert loaded.source.name == other
    assert loaded.source.sentence == f"{expected.source.sentence}, in place of {requested}: there is no connection"
    assert loaded.source.sha256 == expected.source.sha256
    data = [getattr(x, "text", None) or x.values.tolist() for x in (loaded, expected)]
    assert data[0] == data[1]


@pytest.mark.parametrize("load", [load_text, load_series])
def test_a_file_that_is_cut_off_has_no_stand_in(load, small, monkeypatch, tmp_path):
    small("http://127.0.0.1:9")
    monkeypatch.setenv(FOLDER, str(tmp_path))
    (tmp_path / "tinyshakespeare_input.txt").write_bytes(CONTENT[:-20])
    (tmp_path / "ETTh1.csv").write_bytes(CSV[:-20])
    with pytest.raises(ValueError, match=rf"{load.__name__}: .* must have \d+ bytes, got \d+"):
        load()


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"load_text: name must be one of tinyshakespeare, .* prose, got 'hamlet'"):
        load_text("hamlet")
    with pytest.raises(ValueError, match="load_series: name must be one of ETTh1, seasonal, got 'ETTh2'"):
        load_series("ETTh2")


def test_the_public_files_are_known_by_their_checksums():
    for target, beginning, size in (
        (text_module.SHAKESPEARE, "86c4e6aa9db7c042", 1_115_394),
        (series_module.ETTH1, "f18de3ad269cef59", 2_589_657),
    ):
        assert target.source.sha256.startswith(beginning)
        assert len(target.source.sha256) == 64
        assert target.size == size
        assert target.url.startswith("https://raw.githubusercontent.com/")


def test_no_part_of_etth1_is_shipped():
    """Its licence forbids it; the line that heads the file would stand in a copy."""
    root = Path(__file__).parents[1]
    for folder in ("smalearn", "assets", "chapters"):
        for path in (root / folder).rglob("*"):
            if path.is_file():
                assert b"HUFL,HULL,MUFL" not in path.read_bytes(), path
