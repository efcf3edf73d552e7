"""A soak of `ane serve`: many requests of several kinds by clients at once. Every answer must be that of the same request alone, and
memory and files must not grow after the first tenth.

usage: scripts/serve/soak.py COMMAND MODEL [--requests 10000 | --seconds S] [--clients 32] [--sessions 4] [--queue 16] [--growth KIB]
Kinds: completions whole and streamed, chats held to a JSON schema, clients that leave in the middle of a stream or of a request,
malformed and oversized requests. A full queue is answered with 503; such a request is sent again later. Prints one line of JSON;
the exit code is 1 if something was wrong.
"""
import argparse
import http.client
import json
import random
import socket
import sys
import threading
import time

from running import Server

TYPE = {"Content-Type": "application/json"}
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}

# Requests with an answer that is always the same: path, body.
FIXED = [("/v1/completions", {"prompt": "Story %d: once" % i, "max_tokens": 4 + i % 29, "temperature": 0, "ignore_eos": True}) for i in range(24)]
FIXED += [("/v1/chat/completions", {"messages": [{"role": "user", "content": "Number %d" % i}], "max_tokens": 60, "temperature": 0, "response_format": {
    "type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}) for i in range(8)]


def post(connection, path, body):
    connection.request("POST", path, json.dumps(body), TYPE)
    answer = connection.getresponse()
    return answer, answer.read()


def text_of(choice):
    return choice["text"] if "text" in choice else choice["message"]["content"]


def streamed(data):
    """The text of an event stream."""
    parts = []
    for line in data.decode().split("\n"):
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            for choice in event.get("choices", []):
                parts.append(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
    if not data.endswith(b"data: [DONE]\n\n"):
        raise ValueError("a stream without an end")
    return "".join(parts)


class Soak:
    def __init__(self, server, options):
        self.server, self.options = server, options
        self.lock = threading.Lock()
        self.taken, self.started, self.counts, self.faults, self.samples = 0, 0, {}, [], []
        self.want = []

    def connect(self):
        return http.client.HTTPConnection(self.server.host, self.server.port, timeout=600)

    def serial(self):
        """The answers of all fixed requests, one by one."""
        connection = self.connect()
        for path, body in FIXED:
            answer, data = post(connection, path, body)
            assert answer.status == 200, data
            self.want.append(text_of(json.loads(data)["choices"][0]))
        connection.close()

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def fault(self, what):
        with self.lock:
            self.faults.append(what)

    def take(self):
        """Takes a request. A sample is kept at each hundredth of them, or of the time."""
        with self.lock:
            gone = time.time() - self.started
            if len(self.faults) > 20 or (gone >= self.options.seconds if self.options.seconds else self.taken == self.options.requests):
                return False
            share = gone / self.options.seconds if self.options.seconds else self.taken / self.options.requests
            if share * 100 >= len(self.samples):
                self.samples.append((self.server.resident(), self.server.files()))
            self.taken += 1
            return True

    def fixed(self, rng, connection):
        i, stream = rng.randrange(len(FIXED)), rng.random() < 0.5
        path, body = FIXED[i]
        while True:
            answer, data = post(connection, path, dict(body, stream=stream))
            if answer.status != 503:
                break
            self.count("503")
            time.sleep(0.01 + rng.random() * 0.05)
        if answer.status != 200:
            return self.fault("%s: status %d: %s" % (path, answer.status, data[:200]))
        got = streamed(data) if stream else text_of(json.loads(data)["choices"][0])
        if got != self.want[i]:
            self.fault("request %d, stream %s: %r, not %r" % (i, stream, got, self.want[i]))
        self.count("streams" if stream else "answers")

    def leave(self, rng):
        """Leaves in the middle of a request or of its answer."""
        # Greedy, as the pool keeps the state of replies that differ as prefixes, up to its limit of memory.
        body = json.dumps({"prompt": "a", "max_tokens": 400, "ignore_eos": True, "temperature": 0, "stream": rng.random() < 0.7})
        text = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        with socket.create_connection((self.server.host, self.server.port), timeout=600) as s:
            if rng.random() < 0.3:
                s.sendall(text[:rng.randrange(1, len(text))].encode())
            else:
                s.sendall(text.encode())
                if rng.random() < 0.7:
                    s.recv(rng.choice([1, 100, 2000]))
        self.count("left")

    def wrong(self, rng, connection):
        path, body, headers, want = rng.choice([
            ("/v1/completions", b"{", TYPE, 400), ("/v1/completions", b'{"prompt": 1}', TYPE, 400), ("/v1/completions", b"{}", {}, 415),
            ("/nowhere", b"{}", TYPE, 404), ("/v1/completions", b'{"prompt": "' + b"a" * 300000 + b'"}', TYPE, 413),
            ("/v1/chat/completions", b'{"messages": [], "tools": 3}', TYPE, 400)])
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        error = json.loads(answer.read())["error"]
        if answer.status != want or not error["message"]:
            self.fault("%s %r: status %d, not %d" % (path, body[:20], answer.status, want))
        self.count("wrong")

    def client(self, number):
        rng, connection = random.Random(number), self.connect()
        while self.take():
            kind = rng.random()
            try:
                if kind < 0.08:
                    self.leave(rng)
                elif kind < 0.16:
                    self.wrong(rng, connection)
                else:
                    self.fixed(rng, connection)
            except Exception as e:  # a client's failure is a finding, not the end of the others
                self.fault(repr(e))
                connection.close()
        connection.close()

    def run(self):
        self.serial()
        threads = [threading.Thread(target=self.client, args=(n,)) for n in range(self.options.clients)]
        self.started = time.time()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.seconds = time.time() - self.started


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("command")
    p.add_argument("model")
    p.add_argument("--requests", type=int, default=10000)
    p.add_argument("--seconds", type=float, help="how long to send requests, instead of a number of them")
    p.add_argument("--clients", type=int, default=32)
    p.add_argument("--sessions", type=int, default=4)
    p.add_argument("--queue", type=int, default=16)
    p.add_argument("--growth", type=int, default=8192, help="KiB by which resident memory may grow after the first tenth")
    options = p.parse_args()
    server = Server(options.command, options.model, "--sessions", str(options.sessions), "--queue", str(options.queue), "--max-body", "200000")
    before = server.files()
    soak = Soak(server, options)
    try:
        soak.run()
        deadline = time.time() + 120  # until the server has closed what the clients have left
        while server.files() > before and time.time() < deadline:
            time.sleep(0.1)
        files, resident = server.files(), server.resident()
    finally:
        code = server.stop()
    tenth = max(1, len(soak.samples) // 10)
    early = max(r for r, _ in soak.samples[:tenth])
    late = max(r for r, _ in soak.samples[-tenth:])
    if late - early > options.growth:
        soak.faults.append("resident memory grew from %d to %d KiB" % (early, late))
    if files > before:
        soak.faults.append("%d files are open, %d were before" % (files, before))
    if code != 0:
        soak.faults.append("exit code %d" % code)
    print(json.dumps({"ok": not soak.faults, "requests": soak.taken, "seconds": round(soak.seconds, 1), **soak.counts, "resident_kib": {
        "early": early, "late": late, "end": resident}, "files": {"before": before, "most": max(f for _, f in soak.samples), "end": files},
        "faults": soak.faults[:20]}))
    return 1 if soak.faults else 0


if __name__ == "__main__":
    sys.exit(main())
