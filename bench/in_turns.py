"""Prefill and single decode steps of ane, of ane with a LoRA adapter, and of llama.cpp, in turns, on a machine that others use too.

    python3 bench/in_turns.py MODEL.gguf [--llama PYTHON] [--adapter PATH] [--turns 5] [--threads 2] [-p 512] [-n 64]

PYTHON has llama-cpp-python. Each program loads the model once; then all compute the prompt and the steps in each turn, with the same
token ids. Two measures withstand other load. The fastest prompt and the fastest step of all turns are those that nothing interrupted.
The CPU seconds (with --threads 1: of the one thread that computes; more threads wait busily) leave out the time that others had.
Printed are tokens/s and, turn by turn, the ratio of CPU seconds to ane's: median (lowest .. highest). ane's decode is given
with whole logits, as llama.cpp computes them, and with the best token alone, as greedy generation needs it.
"""
import argparse, json, statistics, subprocess, sys, time

def token(i): return 100 + i * 7919 % 30011

def llama(path, threads, prompt, steps):
    """Serves turns of llama.cpp as bench/in_turns.lua does those of ane."""
    import ctypes
    import llama_cpp as L
    quiet = L.llama_log_callback(lambda level, text, data: None)
    L.llama_log_set(quiet, ctypes.c_void_p(0))
    L.llama_backend_init()
    mp, cp = L.llama_model_default_params(), L.llama_context_default_params()
    mp.n_gpu_layers = 0
    cp.n_ctx, cp.n_batch, cp.n_ubatch, cp.n_threads, cp.n_threads_batch = prompt + steps + 8, 2048, 512, threads, threads
    ctx = L.llama_init_from_model(L.llama_model_load_from_file(path.encode(), mp), cp)
    batch = L.llama_batch_init(prompt, 0, 1)

    def decode(ids, at):
        batch.n_tokens = len(ids)
        for i, t in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = t, at + i, 1, i == len(ids) - 1
            batch.seq_id[i][0] = 0
        wall, cpu = time.perf_counter(), time.process_time()
        if L.llama_decode(ctx, batch) != 0: sys.exit("llama_decode failed")
        L.llama_synchronize(ctx)
        return time.perf_counter() - wall, time.process_time() - cpu

    def turn():
        L.llama_memory_clear(L.llama_get_memory(ctx), False)
        pp = decode([token(i + 1) for i in range(prompt)], 0)
        tg = [decode([token(prompt + i + 1)], prompt + i) for i in range(steps)]
        return {"pp": pp[0], "pp_cpu": pp[1], "tg": [t[0] for t in tg], "tg_cpu": sum(t[1] for t in tg)}
    turn()
    print("ready", flush=True)
    for _ in sys.stdin: print(json.dumps(turn()), flush=True)

def start(command):
    p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if p.stdout.readline().strip() != "ready": sys.exit("no answer: " + " ".join(command))
    return p

def ask(p):
    p.stdin.write("go\n"); p.stdin.flush()
    return json.loads(p.stdout.readline())

def row(label, tokens, name, turns, own, key):
    """A row of the table: `key` of the turns of a program, beside `own`, the same key's turns of ane."""
    least = min(t[key] if key == "pp" else min(t[key]) * tokens for t in turns)
    cpu = statistics.median(t[key + "_cpu"] for t in turns)
    ratio = sorted(t[key + "_cpu"] / o["tg_cpu" if key == "am" else key + "_cpu"] for t, o in zip(turns, own))
    print(f"| {name}, {label} | {tokens / least:.1f} | {tokens / cpu:.1f} | {statistics.median(ratio):.3f} ({ratio[0]:.3f} .. {ratio[-1]:.3f}) |")

def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model"); a.add_argument("--llama", metavar="PYTHON"); a.add_argument("--adapter", metavar="PATH")
    a.add_argument("--turns", type=int, default=5); a.add_argument("--threads", type=int, default=2)
    a.add_argument("-p", type=int, default=512); a.add_argument("-n", type=int, default=64)
    a.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    a = a.parse_args()
    if a.serve: return llama(a.model, a.threads, a.p, a.n)
    own = ["lua5.4", "bench/in_turns.lua", a.model, str(a.threads), str(a.p), str(a.n)]
    commands = {"ane": own}
    if a.adapter: commands["ane, adapter"] = own + [a.adapter]
    if a.llama: commands["llama.cpp"] = [a.llama, __file__, a.model, "--serve", "--threads", str(a.threads), "-p", str(a.p), "-n", str(a.n)]
    running = {name: start(command) for name, command in commands.items()}
    turns = {name: [] for name in running}
    for _ in range(a.turns):
        for name, p in running.items(): turns[name].append(ask(p))
    for p in running.values():
        p.stdin.close()
        p.wait()
    print(f"{a.model}, {a.threads} threads, {a.turns} turns\n\n| | fastest, tokens/s | CPU, tokens/s | CPU seconds to ane's |\n|---|---|---|---|")
    for key, label, tokens in (("pp", "prefill", a.p), ("tg", "decode", a.n), ("am", "decode, best token", a.n)):
        for name, list_ in turns.items():
            if key in list_[0]: row(label, tokens, name, list_, turns["ane"], key)

main()
