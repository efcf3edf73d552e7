"""Texts/s of embedding models: ane, fastembed, sentence-transformers and llama.cpp on the same texts, in turns.

    python3 bench/embeddings.py FOLDER TEXTS [--turns N] [--threads N] [--gguf FILE --llama PYTHON]
        [--fastembed PYTHON] [--sentence PYTHON]

FOLDER is of sentence-transformers, of a BERT model, with model.onnx in it for fastembed (inputs input_ids, attention_mask, token_type_ids;
output last_hidden_state). TEXTS has a text a line. Each PYTHON is an interpreter that has the package; a contestant without one is left out.
A contestant loads its model, then embeds all texts once a turn; the time is that of the call alone. Printed are the medians.
"""
import argparse, json, statistics, subprocess, sys, time

def fastembed(folder, _, threads):
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType
    pooling = json.load(open(folder + "/1_Pooling/config.json"))
    kind = PoolingType.CLS if pooling.get("pooling_mode_cls_token") else PoolingType.MEAN
    size = json.load(open(folder + "/config.json"))["hidden_size"]
    TextEmbedding.add_custom_model(model="x/y", pooling=kind, normalization=True, sources=ModelSource(hf="x/y"), dim=size,
                                   model_file="model.onnx")
    model = TextEmbedding("x/y", specific_model_path=folder, threads=threads)
    # As sentence-transformers does, texts of like length go into one batch.
    return lambda texts: list(model.embed(sorted(texts, key=len), batch_size=32))

def sentence(folder, _, threads):
    import torch
    from sentence_transformers import SentenceTransformer
    torch.set_num_threads(threads)
    model = SentenceTransformer(folder, device="cpu")
    return lambda texts: model.encode(texts, batch_size=32, show_progress_bar=False)

def llama(_, gguf, threads):
    import llama_cpp
    model = llama_cpp.Llama(gguf, embedding=True, n_ctx=2048, n_batch=2048, n_ubatch=2048, n_threads=threads, n_threads_batch=threads,
                            verbose=False)
    return lambda texts: model.embed(sorted(texts, key=len), normalize=True, truncate=True)

def serve(name, folder, gguf, texts, threads):
    embed = {"fastembed": fastembed, "sentence": sentence, "llama": llama}[name](folder, gguf, threads)
    texts = open(texts, encoding="utf-8").read().splitlines()
    embed(texts[:2])
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        embed(texts)
        print(f"{time.perf_counter() - start:.4f}", flush=True)

def start(command):
    p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if p.stdout.readline().strip() != "ready": sys.exit("no answer: " + " ".join(command))
    return p

def ask(p):
    p.stdin.write("go\n"); p.stdin.flush()
    return float(p.stdout.readline())

def main():
    a = argparse.ArgumentParser()
    a.add_argument("folder"); a.add_argument("texts")
    a.add_argument("--turns", type=int, default=5); a.add_argument("--threads", type=int, default=2)
    for name in ("gguf", "llama", "fastembed", "sentence", "serve"): a.add_argument("--" + name)
    a = a.parse_args()
    if a.serve: return serve(a.serve, a.folder, a.gguf, a.texts, a.threads)
    own = ["lua5.4", "bench/embeddings.lua", a.folder, a.texts, str(a.threads)]
    commands = {"ane": own, "ane int8": own + ["int8"]}
    for name in ("fastembed", "sentence", "llama"):
        if getattr(a, name):
            more = ["--gguf", a.gguf] if a.gguf else []
            commands[name] = [getattr(a, name), __file__, a.folder, a.texts, "--serve", name, "--threads", str(a.threads)] + more
    running = {name: start(command) for name, command in commands.items()}
    n, seconds = sum(1 for _ in open(a.texts, encoding="utf-8")), {name: [] for name in running}
    for turn in range(a.turns):
        for name, p in running.items(): seconds[name].append(ask(p))
        print(turn + 1, {name: round(n / s[-1], 1) for name, s in seconds.items()}, flush=True)
    print("texts/s, median:", {name: round(n / statistics.median(s), 1) for name, s in seconds.items()})
    for p in running.values():
        p.stdin.close()
        p.wait()

main()
