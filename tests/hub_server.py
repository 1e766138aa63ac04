"""A server on loopback that speaks the part of the Hugging Face Hub's protocol with which models are downloaded.

In: repositories, {id: Repository}. Out: an address for HF_ENDPOINT, and the log of what was asked.
"""

import dataclasses
import hashlib
import http.server
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

MESSAGES = {401: "Unauthorized", 403: "Forbidden"}


@dataclasses.dataclass
class Repository:
    """One model repository.

    files: name -> content, the same at each revision
    revisions: branch or tag -> commit
    token: the token that opens it; None for a public repository
    gated: a 403 names it as gated
    cut, stall: name -> the number of bytes after which the connection is closed, or says no more, once each
    """

    files: dict[str, bytes]
    revisions: dict[str, str] = dataclasses.field(default_factory=lambda: {"main": "a" * 40})
    token: str | None = None
    gated: bool = False
    card: dict = dataclasses.field(default_factory=dict)
    cut: dict[str, int] = dataclasses.field(default_factory=dict)
    stall: dict[str, int] = dataclasses.field(default_factory=dict)

    def commit(self, revision: str) -> str | None:
        known = self.revisions | {commit: commit for commit in self.revisions.values()}
        return known.get(revision)


class Hub(http.server.ThreadingHTTPServer):
    """The server; `log` has a line for each request: method, path, Range, status."""

    daemon_threads = True

    def __init__(self, repositories: dict[str, Repository]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories, self.log = repositories, list[str]()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving(repositories: dict[str, Repository]) -> Iterator[Hub]:
    with Hub(repositories) as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].replace("%2F", "/")
        api = re.fullmatch(r"/api/models/(.+?)(?:/(revision|tree)/(.+))?", path)
        file = re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path)
        found = api or file
        name = found.group(1) if found else ""
        repository = self.server.repositories.get(name)
        if repository is None:
            # The Hub does not tell strangers which repositories exist.
            self._refuse(404 if self._token() else 401, "RepoNotFound")
        elif repository.token is not None and self._token() != repository.token:
            self._refuse(*(403, "GatedRepo") if repository.gated else (401, "RepoNotFound"))
        elif api:
            self._api(name, repository, api.group(2), api.group(3) or "main")
        else:
            self._file(repository, *file.groups()[1:])

    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _api(self, name: str, repository: Repository, kind: str | None, revision: str) -> None:
        commit = repository.commit(revision)
        if commit is None:
            self._refuse(404, "RevisionNotFound")
        elif kind == "tree":
            rows = [
                {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for path, content in repository.files.items()
            ]
            self._send(200, json.dumps(rows).encode())
        else:
            siblings = [{"rfilename": path} for path in repository.files]
            answer = {"id": name, "sha": commit, "siblings": siblings, "cardData": repository.card}
            self._send(200, json.dumps(answer | {"tags": [], "private": False, "downloads": 0}).encode())

    def _file(self, repository: Repository, revision: str, path: str) -> None:
        commit, content = repository.commit(revision), repository.files.get(path)
        if commit is None or content is None:
            self._refuse(404, "RevisionNotFound" if commit is None else "EntryNotFound")
            return
        more = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
        span = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if span:
            start = int(span.group(1))
            more["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self._send(206, content[start:], more)
        elif self.command == "GET" and path in repository.cut:
            self._send(200, content, more, cut=repository.cut.pop(path))
        elif self.command == "GET" and path in repository.stall:
            self._send(200, content, more, cut=repository.stall.pop(path), seconds=5)
        else:
            self._send(200, content, more)

    def _refuse(self, status: int, code: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": MESSAGES.get(status, "Not found")}
        self._send(status, b"{}", headers | {"X-HF-Warning": f"{time.monotonic_ns()}; set a token"})

    def _send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        *,
        cut: int | None = None,
        seconds: float = 0,
    ) -> None:
        asked = f" {self.headers['Range']}" if "Range" in self.headers else ""
        closed = "" if cut is None else f", closed after {cut:,} of {len(body):,} bytes"
        self.server.log.append(f"{self.command} {self.path.partition('?')[0]}{asked}: {status}{closed}")
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | (headers or {})).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:cut])
        if cut is not None:
            self.wfile.flush()
            time.sleep(seconds)
            self.close_connection = True

    def log_message(self, *args: object) -> None:
        pass
