"""Gives spec/fixtures/hf/bert and cross_encoder a tokenizer.json, and texts.json with what the tokenizers library and
sentence-transformers make of texts and pairs.  Needs sentence-transformers.

    python3 spec/golden/embedding_texts.py
"""
import json, os, shutil
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HF = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "fixtures", "hf")
CORPUS = [
    "The cat sat on the mat and looked at the moon.", "Search finds the passages that answer a question.",
    "An embedding is a vector; texts that mean the same lie near each other.", "How many legs does a spider have? Eight.",
    "Paris is the capital of France, and Berlin that of Germany.", "Rain falls from clouds when drops grow too heavy to float.",
    "The quick brown fox jumps over the lazy dog, 1234567890 times.", "Café naïve Straße: accents go away.",
]
TEXTS = CORPUS[:5] + ["", "Unknown 東京 words", "  spaces\tand CAPS  ", "a" * 120, " ".join(CORPUS * 4)]
PAIRS = [(CORPUS[3], CORPUS[5]), ("short", " ".join(CORPUS * 3)), (" ".join(CORPUS * 3), "short"), (" ".join(CORPUS * 2), " ".join(CORPUS * 3)), ("", "b")]

def tokenizer():
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False))
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    t.decoder = decoders.WordPiece()
    return t

def install(folder, t):
    t.no_truncation()
    t.save(os.path.join(folder, "tokenizer.json"))
    names = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f: json.dump({**names, "tokenizer_class": "BertTokenizer", "model_max_length": 128}, f)

t = tokenizer()
bert, cross = os.path.join(HF, "bert"), os.path.join(HF, "cross_encoder")
install(bert, t)
install(cross, t)
out = {"texts": [], "pairs": [], "query": CORPUS[3]}
st = SentenceTransformer(bert, device="cpu")
vectors = st.encode(TEXTS)
t.enable_truncation(128)
for text, v in zip(TEXTS, vectors):
    out["texts"].append({"text": text, "ids": t.encode(text).ids, "embedding": [round(float(x), 7) for x in v]})
for a, b in PAIRS:
    for n in (128, 31):
        t.enable_truncation(n)
        e = t.encode(a, b)
        out["pairs"].append({"a": a, "b": b, "max_length": n, "ids": e.ids, "types": e.type_ids})
ce = CrossEncoder(cross, device="cpu", max_length=128)
out["scores"] = [float(x) for x in ce.predict([(out["query"], x) for x in TEXTS])]
with open(os.path.join(bert, "texts.json"), "w") as f: json.dump(out, f, ensure_ascii=False, indent=0)
