"""A stand-in for the Hugging Face Hub: the part that huggingface_hub calls.

It holds repositories in memory and answers the requests of `create_repo`,
`list_repo_files`, `upload_folder` and `snapshot_download`, with the paths,
fields and headers that huggingface_hub 2.4 sends and reads.
"""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator

TOKEN = "hf_of_the_tests"


class Hub:
    """Repositories by name: what commits hold, and names of commits."""

    def __init__(self):
        self.url = ""
        self.private: dict[str, bool] = {}
        self.commits: dict[str, list[dict[str, bytes]]] = {}
        self.tags: dict[tuple[str, str], int] = {}
        self.asked: list[str] = []

    def tag(self, name: str, tag: str) -> None:
        """Names the last commit."""
        self.tags[name, tag] = len(self.commits[name]) - 1

    def number(self, name: str, revision: str) -> int | None:
        """The number of a commit: by branch, by tag, or by its hash."""
        hashes = [self.hash(name, i) for i in range(len(self.commits[name]))]
        if revision in hashes:
            return hashes.index(revision)
        last = len(self.commits[name]) - 1
        return self.tags.get(
            (name, revision), last if revision == "main" else None
        )

    def hash(self, name: str, number: int) -> str:
        return hashlib.sha1(f"{name} {number}".encode()).hexdigest()


@contextlib.contextmanager
def running() -> Iterator[Hub]:
    """Runs a Hub, at `url`, until the end of the block."""
    hub = Hub()

    class Handler(http.server.BaseHTTPRequestHandler):
        """Answers one request."""

        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def answer(self, content=b"", status=200, **headers):
            if not isinstance(content, bytes):
                content = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            path = urllib.parse.urlparse(self.path).path
            hub.asked.append(path)
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self.answer({"error": "Invalid username or password."}, 401)
            elif path == "/api/repos/create":
                asked = json.loads(body)
                name = f"{asked['organization']}/{asked['name']}"
                if asked["organization"] == "others":
                    self.answer({"error": "You don't have the rights"}, 403)
                elif name in hub.commits:
                    self.answer({"url": f"{hub.url}/{name}"}, 409)
                else:
                    hub.private[name] = asked.get("visibility") == "private"
                    hub.commits[name] = [{".gitattributes": b"* text"}]
                    self.answer({"url": f"{hub.url}/{name}"})
            elif path == "/api/validate-yaml":
                self.answer({"errors": [], "warnings": []})
            elif found := re.fullmatch(
                r"/api/models/(.+)/preupload/main", path
            ):
                self.answer({"files": [
                    {
                        "path": file["path"],
                        "uploadMode": "regular",
                        "shouldIgnore": False,
                    }
                    for file in json.loads(body)["files"]
                ]})  # fmt: skip
            elif found := re.fullmatch(r"/api/models/(.+)/commit/main", path):
                name = found[1]
                files = dict(hub.commits[name][-1])
                for line in map(json.loads, body.splitlines()):
                    value = line["value"]
                    if line["key"] == "deletedFile":
                        del files[value["path"]]
                    elif line["key"] == "file":
                        content = base64.b64decode(value["content"])
                        files[value["path"]] = content
                hub.commits[name].append(files)
                oid = hub.hash(name, len(hub.commits[name]) - 1)
                url = f"{hub.url}/{name}/commit/{oid}"
                self.answer({"commitUrl": url, "commitOid": oid})
            else:
                self.answer({"error": f"not in the tests: {path}"}, 500)

        def do_GET(self):
            path = urllib.parse.urlparse(self.path).path
            hub.asked.append(path)
            for pattern, say in (
                (r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", self.tree),
                (r"/api/models/([^/]+/[^/]+)/revision/([^/]+)", self.about),
                (r"/api/models/([^/]+/[^/]+)()", self.about),
                (r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.file),
            ):
                found = re.fullmatch(pattern, path)
                if found is None:
                    continue
                name, revision, *rest = found.groups()
                if name not in hub.commits:
                    code = {"X_Error_Code": "RepoNotFound"}
                    return self.answer({"error": "not found"}, 404, **code)
                number = hub.number(name, revision or "main")
                if number is None:
                    code = {"X_Error_Code": "RevisionNotFound"}
                    return self.answer({"error": "no revision"}, 404, **code)
                return say(name, number, *rest)
            return self.answer({"error": f"not in the tests: {path}"}, 500)

        do_HEAD = do_GET

        def tree(self, name, number):
            self.answer([
                {
                    "type": "file",
                    "path": path,
                    "size": len(content),
                    "oid": hashlib.sha1(content).hexdigest(),
                }
                for path, content in hub.commits[name][number].items()
            ])  # fmt: skip

        def about(self, name, number):
            files = [{"rfilename": path} for path in hub.commits[name][number]]
            sha = hub.hash(name, number)
            self.answer({"id": name, "sha": sha, "siblings": files})

        def file(self, name, number, path):
            content = hub.commits[name][number][path]
            self.answer(
                content,
                ETag=f'"{hashlib.sha1(content).hexdigest()}"',
                X_Repo_Commit=hub.hash(name, number),
            )

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
