"""Throughput of HTTP servers of OpenAI's API: tokens a second of replies with 1, 8 and 32 clients at once.

usage: bench/serve_load.py URL [--clients 1,8,32] [--requests N] [--tokens N] [--stream]
Each client sends its requests one behind the other; a request is a completion of N tokens of a prompt of its own. With --ignore-eos, which
llama-cpp-python does not know, replies do not end early; else the tokens that came are counted.
"""
import argparse
import http.client
import json
import threading
import time
import urllib.parse


def ask(connection, body):
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    value = json.loads(answer.read())
    if answer.status != 200:
        raise RuntimeError(value)
    return value["usage"]["completion_tokens"]


def run(url, clients, requests, tokens, ignore_eos):
    where = urllib.parse.urlparse(url)
    counts = []

    def client(number):
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=600)
        for i in range(requests):
            body = {"prompt": "Story number %d of teller %d: once upon a time there was a" % (i, number), "max_tokens": tokens, "temperature": 0}
            if ignore_eos:
                body["ignore_eos"] = True
            counts.append(ask(connection, body))

    threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    started = time.perf_counter()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return sum(counts) / (time.perf_counter() - started)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("url")
    p.add_argument("--clients", default="1,8,32")
    p.add_argument("--requests", type=int, default=2)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--ignore-eos", action="store_true")
    a = p.parse_args()
    rates = {n: round(run(a.url, n, a.requests, a.tokens, a.ignore_eos), 1) for n in map(int, a.clients.split(","))}
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
