#!/usr/bin/env python3
"""A hub on loopback, for specs: the list of files, small files from the hub itself, large ones by redirect from a second port.

usage: hub.py LOG      prints "HUB_PORT CDN_PORT" and serves until standard input ends. Each request is a line of LOG: where, method, path,
range, authorization, status. What a repository does wrong is told by its name.
"""
import hashlib, http.server, json, sys, threading, time
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LOG = open(sys.argv[1], "w")
LOCK = threading.Lock()


def content(name, size=300000):
    seed = hashlib.sha256(name.encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


BIG = {n: content(n) for n in ["model-Q4_K_M.gguf", "model-Q8_0.gguf", "mmproj-model-f16.gguf"]}
SPLIT = {f"Q2_K/big-Q2_K-0000{i}-of-00003.gguf": content(str(i), 50000 + i) for i in (1, 2, 3)}
FOLDER = {"model-00001-of-00002.safetensors": content("a", 70000), "model-00002-of-00002.safetensors": content("b", 90000),
          "pytorch_model.bin": content("c", 1000), "original/consolidated.safetensors": content("d", 1000)}
SMALL = {"config.json": b'{"model_type": "llama"}', "1_Pooling/config.json": b"{}", "README.md": b"# x", "empty.json": b""}
REPOS = {"org/gguf": {**BIG, **SPLIT, **SMALL}, "org/folder": {**FOLDER, **SMALL}, "org/one": {"only.gguf": content("o", 1000)},
         "org/several": {"a-Q5_0.gguf": b"x" * 100, "b-Q6_K.gguf": b"y" * 100}, "org/odd": {"../x.gguf": b"x"}, "org/bare": {"README.md": b"x"},
         "org/empty": {}, "org/partless": {n: d for n, d in SPLIT.items() if "00002" not in n}}
for mode in ["breaks", "norange", "wrong", "busy", "stalls", "private", "gated", "dies", "long", "stale", "leaks", "loops", "nolfs", "leaves",
             "floods", "waits", "licence", "kept"]:
    REPOS["org/" + mode] = {"only.gguf": content(mode)}
TRIES = {}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, headers=(), body=b"", cut=None, where="hub"):
        with LOCK:
            LOG.write(json.dumps({"where": self.server.where, "path": self.path, "range": self.headers.get("Range"),
                                  "authorization": self.headers.get("Authorization"), "status": status}) + "\n")
            LOG.flush()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut is None:
            self.wfile.write(body)
            return
        self.wfile.write(body[:cut])
        self.wfile.flush()
        if self.server.mode_stall:
            time.sleep(3)
        self.close_connection = True

    def ranged(self, data, headers, cut=None, ranges=True):
        asked = self.headers.get("Range")
        if not asked or not ranges:
            return self.reply(200, headers, data, cut)
        first = int(asked[len("bytes="):].split("-")[0])
        if first >= len(data):
            return self.reply(416, [("Content-Range", f"bytes */{len(data)}")])
        rest = data[first:]
        headers = list(headers) + [("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")]
        return self.reply(206, headers, rest, None if cut is None else min(cut, len(rest) - 1) if len(rest) > cut else None)

    def flood(self):
        """An answer of no stated length that goes on for 2 GB."""
        self.send_response(200)
        self.end_headers()
        self.close_connection = True
        try:
            for _ in range(2000):
                self.wfile.write(b"x" * 1000000)
        except OSError:
            pass

    def do_GET(self):
        self.server.mode_stall = False
        path = unquote(urlparse(self.path).path)
        if self.server.where == "cdn":
            return self.cdn(path)
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            return self.listing("/".join(parts[2:4]), parts[5])
        repo, name = "/".join(parts[:2]), "/".join(parts[4:])
        if parts[2:3] != ["resolve"] or name not in REPOS.get(repo, {}):
            return self.reply(404)
        data = REPOS[repo][name]
        if not name.endswith((".gguf", ".safetensors", ".bin")):
            return self.ranged(data, [("ETag", '"%s"' % hashlib.sha1(data).hexdigest())])
        etag = hashlib.sha256(data).hexdigest()
        target = f"http://127.0.0.1:{CDN.server_address[1]}/{repo}/{name}?signed=1"
        if repo == "org/licence":
            return self.reply(401, [("X-Error-Code", "GatedRepo")])
        if repo == "org/leaks":
            target = "ftp://127.0.0.1/x"
        if repo == "org/loops":
            target = self.path
        return self.reply(302, [("Location", target), ("X-Linked-Etag", f'"{etag}"'), ("X-Linked-Size", str(len(data))),
                                ("X-Repo-Commit", COMMIT)], b"to the store")

    def listing(self, repo, revision):
        if repo not in REPOS or revision not in ("main", COMMIT, "v1"):
            return self.reply(404, [], b'{"error": "Repository not found"}')
        if repo == "org/private" and self.headers.get("Authorization") != "Bearer hf_secret":
            return self.reply(401)
        if repo == "org/gated":
            return self.reply(403)
        siblings = []
        for name, data in REPOS[repo].items():
            entry = {"rfilename": name}
            if repo != "org/nolfs":
                entry.update(size=len(data), blobId=hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest())
                if name.endswith((".gguf", ".safetensors", ".bin")):
                    entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        return self.reply(200, [("Content-Type", "application/json")], json.dumps({"sha": COMMIT, "siblings": siblings}).encode())

    def cdn(self, path):
        repo, name = "/".join(path.strip("/").split("/")[:2]), "/".join(path.strip("/").split("/")[2:])
        data = REPOS[repo][name]
        n = TRIES[path] = TRIES.get(path, 0) + 1
        if repo == "org/breaks":
            return self.ranged(data, [], 70000)
        if repo == "org/leaves":
            return self.ranged(data, [], 70000 if n == 1 else None)
        if repo == "org/dies":
            return self.ranged(data, [], 0)
        if repo == "org/norange":
            return self.ranged(data, [], 70000 if n == 1 else None, ranges=False)
        if repo == "org/wrong":
            return self.ranged(data[:5] + b"?" + data[6:], [])
        if repo == "org/long":
            return self.ranged(data + b"more", [])
        if repo == "org/floods":
            return self.flood()
        if repo == "org/waits":
            return self.reply(429, [("Retry-After", "3600")])
        if repo == "org/stale" and n == 1:
            return self.reply(416)
        if repo == "org/busy" and n <= 2:
            return self.reply(503, [("Retry-After", "0")])
        if repo == "org/stalls" and n == 1:
            self.server.mode_stall = True
            return self.ranged(data, [], 70000)
        return self.ranged(data, [("ETag", '"another"')])


def serve(where):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.where, server.mode_stall, server.daemon_threads = where, False, True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


HUB, CDN = serve("hub"), serve("cdn")
print(HUB.server_address[1], CDN.server_address[1], flush=True)
sys.stdin.read()
