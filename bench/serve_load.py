"""Throughput of HTTP servers of OpenAI's API: tokens a second of replies with 1, 8 and 32 clients at once.

usage: bench/serve_load.py URL [--clients 1,8,32] [--requests N] [--tokens N] [--stream] [--ignore-eos]
Each client sends its requests one after the other; a request is a completion of N tokens of a prompt of its own. With --ignore-eos, which
llama-cpp-python does not know, replies do not end early; else the tokens that came are counted. One thread waits for all connections and
looks only for the end of an answer, so that the clients take little time of the processors that compute. Without --stream the usage in the
answer counts its tokens; with it, its events, or N where replies do not end early.
"""
import argparse
import json
import selectors
import socket
import time
import urllib.parse


class Client:
    """One connection and its requests."""

    def __init__(self, where, number, options):
        self.where, self.number, self.options = where, number, options
        self.left, self.tokens = options.requests, 0
        self.socket = socket.create_connection((where.hostname, where.port), timeout=600)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ask()

    def ask(self):
        body = {"prompt": "Story number %d of teller %d: once upon a time there was a" % (self.left, self.number), "temperature": 0,
                "max_tokens": self.options.tokens, "stream": self.options.stream}
        if self.options.ignore_eos:
            body["ignore_eos"] = True
        text = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self.parts, self.tail = [], b""
        self.left -= 1
        self.socket.sendall((head % (self.where.netloc, len(text))).encode() + text)

    def read(self):
        """Takes what has come. True: all requests are answered."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise RuntimeError("the server closed the connection after %r" % b"".join(self.parts)[-200:])
        self.parts.append(data)
        self.tail = (self.tail + data)[-16:]
        if not self.is_whole():
            return False
        self.tokens += self.count(b"".join(self.parts))
        if self.left:
            self.ask()
            return False
        self.socket.close()
        return True

    def is_whole(self):
        if self.options.stream:
            return self.tail.endswith(b"0\r\n\r\n")
        answer = b"".join(self.parts)
        head, _, body = answer.partition(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), None)
        return length is not None and len(body) >= length

    def count(self, answer):
        head, _, body = answer.partition(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise RuntimeError(answer[:400])
        if self.options.stream:
            return self.options.tokens if self.options.ignore_eos else body.count(b'data: {') - 1
        return json.loads(body)["usage"]["completion_tokens"]


def run(url, clients, options):
    where = urllib.parse.urlparse(url)
    started = time.perf_counter()
    waiting = selectors.DefaultSelector()
    everyone = [Client(where, n, options) for n in range(clients)]
    for client in everyone:
        waiting.register(client.socket, selectors.EVENT_READ, client)
    left = clients
    while left:
        for key, _ in waiting.select():
            fd = key.fileobj
            if key.data.read():
                waiting.unregister(fd)
                left -= 1
    return sum(c.tokens for c in everyone) / (time.perf_counter() - started)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("url")
    p.add_argument("--clients", default="1,8,32")
    p.add_argument("--requests", type=int, default=2)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--stream", action="store_true")
    p.add_argument("--ignore-eos", action="store_true")
    a = p.parse_args()
    print(json.dumps({n: round(run(a.url, n, a), 1) for n in map(int, a.clients.split(","))}))


if __name__ == "__main__":
    main()
