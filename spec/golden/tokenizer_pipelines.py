#!/usr/bin/env python3
"""Writes spec/fixtures/tokenizer/pipelines.json: tokenizer.json pipelines, and what the `tokenizers` library makes of texts.

usage: tokenizer_pipelines.py [OUT.json] [--random N SEED]   (tokenizers 0.23, sentencepiece 0.2)

The file has `models` (sections "model"), `texts`, and `cases`: the other sections, the name of the model, and for each text
[ids, ids without special tokens found in the text (null where the library's model makes special tokens from text, which we
never do), text of the ids, text without special tokens], and for some texts the offsets, in bytes; 0 where the first or a text
is what it is expected to be, 1 where both texts are the same. `exact`: where our offsets must be the library's. Elsewhere the
library counts what a normaliser or a prefix adds to the next character, which we do not. --random adds N random texts, for a wider search than the committed file.
"""
import base64
import json
import os
import random
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "tokenizer")

CORPUS = """The quick brown fox jumps over the lazy dog. It's we're I'll they've you'd I'm don't DON'T
In 2024 there were 1234567 people, 3.14159 of them said "hello, world!" (twice). e-mail: a.b@c.de
def f(x):\n    return x ** 2  # comment\n\n\nclass A:\n\tpass
Grüße aus Köln, ça va très bien, señor; naïve café résumé Ærøskøbing Łódź İstanbul
Привет, мир! Как дела? Ωμέγα και άλφα
你好世界 日本語のテキスト 한국어 문장 ภาษาไทย हिन्दी में
مرحبا بالعالم שלום עולם
\U0001F600\U0001F468\u200D\U0001F469\u200D\U0001F467 \U0001F1E9\U0001F1EA \u2764\uFE0F
the the and and of of to to in in is is that that for for was was on on with with as as
""".split("\n") * 3

TEXTS = [
    "", " ", "  ", "   \n", "a", "Hello, world!", " Hello  world ", "Hello\nworld\r\n\r\n  x\t\ty", "It's WE'RE i'LL they'Ve", "don\u2019t",
    "1234567 12 3.14 \u0661\u0662\u0663 \u00bd\u00b2 \u2167 \u3007\u4e09", "x" * 70, "ab " * 30, " " * 40 + "x", "\n" * 9, "\t \t \n \u00a0\u2003\u3000 x",
    "Gr\u00fc\u00dfe K\u00d6LN \u1e9e", "e\u0301 \u00e9 a\u0308\u0304 a\u0304\u0308 q\u0323\u0307 q\u0307\u0323", "\u0301leading mark", "\u0130I\u0131i \u01c5 \u03a3\u03c3\u03c2 \u1fb3",
    "\ufb01\ufb02 \u2460 \u212b \u2126 \uff21\uff22\uff23 \uff76\uff9e \u3392 \ufdfa", "\u1100\u1161\u11a8 \uac01 \u1100\u1161", "\u4f60\u597d\u4e16\u754c\uff0c\u4eca\u5929", "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3067\u3059\u3002 \u30fc\u30fc",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5", "\u0645\u064e\u0631\u0652\u062d\u064e\u0628\u064b\u0627 \u200f\u0627\u0644\u0639\u0627\u0644\u0645", "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd", "\u0939\u093f\u0928\u094d\u0926\u0940 \u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22",
    "\U0001F600\U0001F468\u200d\U0001F469\u200d\U0001F467\U0001F1E9\U0001F1EA\u2764\ufe0f\U0001F44D\U0001F3FD", "\U00020000\U0001D54F \U000E0001\U0010FFFF", "\x00\x01\x07\x1b[0m\x7f\x85\u009f", "\ufeffbom \ufffd \u200b\u200c\u2060\u00ad",
    "\u2028\u2029\u1680\u180e\u205f", "a\u0300" * 20, "<s>hi</s>", "[CLS] x [SEP]", "<s><s> <s>  </s>", "x<mask>y <mask> z  <mask>", "word wordy aword word.word_word", "\u00c9clair e\u0301clair \u00e9clair",
    "<0x41><0xE2>", "\u2581already\u2581there", "\u0120\u010ahello", "!?\u00a1\u00bf...\u2026\u300c\u300d--\u2014$+<=>^`|~", "a_b-c.d,e;f:g", "CamelCaseHTTPServer2Go x86_64", "http://a.b/c?d=e&f=%20#g",
    "def f(x):\n    return x ** 2  # c\n\n\n\tpass\n", "\u0421\u044a\u0435\u0448\u044c \u0435\u0449\u0451 \u03a9\u03bc\u03ad\u03b3\u03b1", " .  ,  !  ?  n't 's 've 're 'm do not", "the and of to in is that for was on with as", "\u2019s \uff07s 'S 's'", "A" * 30 + " " + "b" * 120,
    "\u00a0x\u00a0\u00a0y", "\r\r\n\n\r", "1" * 20, "12 345 6789 01", "-1 +2 \u22123", "\u2160\u24b6\U0001f130\u00aa\u00ba", "\u0345\u0903\u20dd\u0660\u203f\u200d",
]


# ---- Models ---------------------------------------------------------------------------------------------------------

def train(model, trainer, pre=None, norm=None):
    t = Tokenizer(model)
    if pre: t.pre_tokenizer = pre
    if norm: t.normalizer = norm
    t.train_from_iterator(CORPUS, trainer)
    return json.loads(t.to_str())["model"]


def byte_pieces():
    return [f"<0x{b:02X}>" for b in range(256)]


def all_models():
    out = {}
    out["bytes"] = train(models.BPE(), trainers.BpeTrainer(vocab_size=400, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
                         pre_tokenizers.ByteLevel(add_prefix_space=False))
    out["bytes_ignore"] = dict(out["bytes"], ignore_merges=True)
    chars = train(models.BPE(), trainers.BpeTrainer(vocab_size=330, show_progress=False), pre_tokenizers.Metaspace())
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for piece in byte_pieces() + list(chars["vocab"]):
        vocab.setdefault(piece, len(vocab))
    out["fallback"] = dict(chars, vocab=vocab, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    out["fallback_whole"] = dict(out["fallback"], ignore_merges=True)
    no_bytes = {"<unk>": 0}
    for piece in chars["vocab"]:
        no_bytes.setdefault(piece, len(no_bytes))
    out["chars"] = dict(chars, vocab=no_bytes, unk_token="<unk>", fuse_unk=False)
    out["chars_fused"] = dict(out["chars"], fuse_unk=True)
    out["chars_bare"] = dict(chars, unk_token=None)
    out["suffix"] = train(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"),
                          trainers.BpeTrainer(vocab_size=300, show_progress=False, special_tokens=["<unk>"], end_of_word_suffix="</w>"), pre_tokenizers.Whitespace())
    out["prefix"] = train(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"),
                          trainers.BpeTrainer(vocab_size=300, show_progress=False, special_tokens=["<unk>"], continuing_subword_prefix="##"), pre_tokenizers.Whitespace())
    unigram = train(models.Unigram(), trainers.UnigramTrainer(vocab_size=260, show_progress=False, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>"),
                    pre_tokenizers.Metaspace())
    out["unigram"] = unigram
    known = [p for p, _ in unigram["vocab"]]
    out["unigram_bytes"] = dict(unigram, vocab=unigram["vocab"] + [[p, 0.0] for p in byte_pieces() if p not in known], byte_fallback=True)
    out["wordpiece"] = train(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=60),
                             trainers.WordPieceTrainer(vocab_size=300, show_progress=False, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]),
                             pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer())
    out["words"] = train(models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer(vocab_size=60, show_progress=False, special_tokens=["<unk>"]), pre_tokenizers.Whitespace())
    return out


def charsmap():
    """A small precompiled_charsmap, compiled by sentencepiece."""
    with tempfile.TemporaryDirectory() as d:
        def points(s): return " ".join(f"{ord(c):X}" for c in s)
        rules = {"\ufb01": "fi", "\u2460": "1", "e\u0301": "\u00e9", "\u00a0": " ", "\u200b": "", "\uff21": "A", "\u3392": "MHz", "a\u0308\u0304": "\u01df",
                 "A": "a", "\u1100\u1161\u11a8": "\uac01", "\u2126": "\u03a9", "\t": " ", "\n": " "}
        with open(d + "/rules.tsv", "w") as f:
            for a, b in rules.items(): f.write(points(a) + "\t" + points(b) + "\n")
        with open(d + "/c.txt", "w") as f: f.write("\n".join(CORPUS))
        subprocess.run([sys.executable, "-c", "import sentencepiece as s, sys; s.SentencePieceTrainer.train(input=sys.argv[1], model_prefix=sys.argv[2], "
                        "vocab_size=400, hard_vocab_limit=False, normalization_rule_tsv=sys.argv[3], minloglevel=2)", d + "/c.txt", d + "/m", d + "/rules.tsv"], check=True,
                       stderr=subprocess.DEVNULL)
        import sentencepiece.sentencepiece_model_pb2 as pb
        m = pb.ModelProto()
        m.ParseFromString(open(d + "/m.model", "rb").read())
        return m.normalizer_spec.precompiled_charsmap


# ---- Patterns of well-known models ----------------------------------------------------------------------------------

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
QWEN2 = LLAMA3.replace("{1,3}", "")
O200K = "|".join([
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""", r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""", r"""\s*[\r\n]+""", r"""\s+(?!\S)""", r"""\s+"""])
DEEPSEEK3 = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
             r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""]
QWEN35 = LLAMA3.replace(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+", r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+")


# ---- Cases ----------------------------------------------------------------------------------------------------------

def split(p, behaviour="isolated", invert=False, plain=False):
    return pre_tokenizers.Split(p if plain else Regex(p), behaviour, invert)


def level(*steps):
    return pre_tokenizers.Sequence(list(steps) + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


SPECIAL = [AddedToken("<s>", special=True), AddedToken("</s>", special=True)]


def all_cases():
    N, P, D, X = normalizers, pre_tokenizers, decoders, processors
    blob = charsmap()
    out = []

    def case(name, model, norm=None, pre=None, dec=None, post=None, added=()):
        out.append((name, model, norm, pre, dec, post, list(added)))

    # Byte-level, as published models have it.
    for name, pattern in [("gpt2", GPT2), ("llama3", LLAMA3), ("qwen2", QWEN2), ("o200k", O200K), ("qwen35", QWEN35)]:
        case(name, "bytes", N.NFC() if "qwen" in name else None, level(split(pattern)), D.ByteLevel(), None, SPECIAL)
    case("deepseek3", "bytes", None, level(*[split(p) for p in DEEPSEEK3]), D.ByteLevel(), None, SPECIAL)
    case("llama3 whole tokens", "bytes_ignore", None, level(split(LLAMA3)), D.ByteLevel(),
         X.Sequence([X.ByteLevel(trim_offsets=False), X.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 400)])]), SPECIAL)
    for add in (False, True):
        for regex in (False, True):
            case(f"ByteLevel {add} {regex}", "bytes", None, P.ByteLevel(add_prefix_space=add, use_regex=regex), D.ByteLevel())
    case("ByteLevel twice", "bytes", None, P.Sequence([P.ByteLevel(False), P.ByteLevel(False)]), D.ByteLevel())
    case("ByteLevel normaliser", "bytes", N.ByteLevel(), split("\u0120", "merged_with_next", plain=True), D.ByteLevel())
    case("roberta", "bytes", None, P.ByteLevel(add_prefix_space=False, trim_offsets=False), D.ByteLevel(),
         X.RobertaProcessing(("</s>", 401), ("<s>", 400), trim_offsets=False, add_prefix_space=False), SPECIAL)
    case("digits then level", "bytes", None, level(P.Digits(individual_digits=True), split(GPT2)), D.ByteLevel())
    case("no split", "bytes", None, level(), D.ByteLevel())

    # Splits: every behaviour, both ways, patterns and plain text.
    for behaviour in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            case(f"Split {behaviour} {invert}", "bytes", None, level(split(r"\s|[aeiou]", behaviour, invert)), D.ByteLevel())
            case(f"Split {behaviour} {invert} plain", "chars", None, split("l", behaviour, invert, True), D.Fuse())
        case(f"Punctuation {behaviour}", "chars", None, P.Punctuation(behaviour), None)
    for pattern in (r"", r"x*", r"(?=[A-Z])", r"(?<=\p{Lu})(?=\p{Lu}\p{Ll})", r"\b", r"\w+|\W", r"(?i)HELLO|stra(ss|\u00df)e", r"[[:alpha:]]+|[[:punct:]]|[[:space:]]",
                    r"^.", r".$", r"\A.|.\z", r"(?m:.+)", r".+", r"\h+", r"[a-z&&[^aeiou]]+", r"\p{Han}+|\p{Hiragana}+|\p{Alpha}+", r"\p{Greek}+", r"\X", r"\R", r"(a|b)\1",
                    r"\d{2}", r"[^\S\n]+", r"(?>a+|b)c?", r"\x{4f60}|\u597d", r"\p{^L}+", r"\P{L}", r"a++b|[\w&&[^0-9]]*?", r"\G.", r"l\Ko"):
        case(f"Regex {pattern}", "bytes", None, level(split(pattern)), D.ByteLevel())
    case("Digits", "chars", None, P.Digits(), None)
    case("Digits each", "chars", None, P.Digits(individual_digits=True), None)
    case("Whitespace", "chars", None, P.Whitespace(), None)
    case("WhitespaceSplit", "chars", None, P.WhitespaceSplit(), None)
    case("BertPreTokenizer", "chars", None, P.BertPreTokenizer(), None)
    case("CharDelimiterSplit", "chars", None, P.CharDelimiterSplit("e"), None)
    case("FixedLength", "bytes", None, level(P.FixedLength(3)), D.ByteLevel())
    case("Sequence", "chars", None, P.Sequence([P.WhitespaceSplit(), P.Punctuation(), P.Digits(True)]), None)

    # Metaspace, and what stands in for it in normalisers.
    for scheme in ("always", "first", "never"):
        for cut in (True, False):
            case(f"Metaspace {scheme} {cut}", "fallback", None, P.Metaspace(prepend_scheme=scheme, split=cut), D.Metaspace(prepend_scheme=scheme), None, SPECIAL)
    spaces = [D.Replace("\u2581", " "), D.ByteFallback(), D.Fuse()]
    case("gemma", "fallback", N.Replace(" ", "\u2581"), split(" ", "merged_with_previous", plain=True), D.Sequence(spaces), None, SPECIAL)
    case("llama2", "fallback", N.Sequence([N.Prepend("\u2581"), N.Replace(" ", "\u2581")]), None, D.Sequence(spaces + [D.Strip(" ", 1, 0)]),
         X.TemplateProcessing(single="<s> $A </s>", pair=None, special_tokens=[("<s>", 1), ("</s>", 2)]), SPECIAL)
    case("llama2 whole", "fallback_whole", N.Sequence([N.Prepend("\u2581"), N.Replace(" ", "\u2581")]), None, D.Sequence(spaces + [D.Strip(" ", 1, 1)]))
    for name in ("unigram", "unigram_bytes"):
        case(name, name, None, P.Metaspace(), D.Metaspace(), None, SPECIAL)
        case(name + " t5", name, N.Sequence([N.Precompiled(blob), N.Strip(False, True), N.Replace(Regex(" {2,}"), "\u2581")]), P.Metaspace(), D.Metaspace())
        case(name + " bare", name, None, None, D.Sequence([D.ByteFallback(), D.Fuse()]) if name != "unigram" else D.Fuse())
    case("Metaspace other mark", "chars", None, P.Metaspace("_", prepend_scheme="always"), D.Metaspace("_", prepend_scheme="always"))

    # Normalisers.
    for name, n in [
            ("NFC", N.NFC()), ("NFD", N.NFD()), ("NFKC", N.NFKC()), ("NFKD", N.NFKD()), ("Lowercase", N.Lowercase()), ("StripAccents", N.StripAccents()),
            ("NFD StripAccents", N.Sequence([N.NFD(), N.StripAccents(), N.NFC()])), ("Nmt", N.Nmt()), ("Strip", N.Strip()), ("Strip left", N.Strip(True, False)),
            ("Strip right", N.Strip(False, True)), ("Prepend", N.Prepend("ab")), ("Replace text", N.Replace("l", "LL")), ("Replace away", N.Replace("o", "")),
            ("Replace regex", N.Replace(Regex(r"\s+"), " ")), ("Replace quotes", N.Replace(Regex("[`'\"\u2019]+"), "'")), ("Bert", N.BertNormalizer()), ("Bert cased", N.BertNormalizer(lowercase=False)), ("Bert strip", N.BertNormalizer(False, False, True, False)),
            ("Bert none", N.BertNormalizer(True, True, False, True)), ("Precompiled", N.Precompiled(blob)), ("Empty", N.Sequence([])),
            ("Many", N.Sequence([N.NFKD(), N.StripAccents(), N.Lowercase(), N.Strip(), N.Replace(Regex(r"\s+"), " "), N.Prepend("\u2581"), N.NFC()]))]:
        case(f"normaliser {name}", "bytes", n, level(split(GPT2)), D.ByteLevel())
        case(f"normaliser {name} chars", "chars", n, None, None)

    # Models that split words.
    bert = X.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = [AddedToken(s, special=True, normalized=False) for s in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
    case("bert", "wordpiece", N.BertNormalizer(), P.BertPreTokenizer(), D.WordPiece(), bert, names)
    case("bert raw", "wordpiece", None, P.WhitespaceSplit(), D.WordPiece(cleanup=False), None, names)
    case("bert whole", "wordpiece", None, None, D.WordPiece())
    case("words", "words", None, P.Whitespace(), None)
    case("suffix", "suffix", N.Lowercase(), P.Whitespace(), D.BPEDecoder())
    case("prefix", "prefix", None, P.Whitespace(), D.WordPiece())
    case("chars fused", "chars_fused", None, None, D.Fuse())
    case("chars bare", "chars_bare", None, None, D.Fuse())

    # Decoders.
    for name, d in [("none", None), ("Fuse", D.Fuse()), ("Strip", D.Strip("e", 1, 2)), ("Fuse Strip", D.Sequence([D.Fuse(), D.Strip(" ", 2, 3)])),
                    ("Replace regex", D.Replace(Regex("[aeiou]"), "*")), ("Replace Fuse", D.Sequence([D.Replace("e", "E"), D.Fuse(), D.Strip("T", 1, 0)])),
                    ("ByteFallback", D.ByteFallback()), ("WordPiece", D.WordPiece("##", True))]:
        case(f"decoder {name}", "fallback", None, None, d)

    # Added tokens and their flags.
    for flags in ({}, {"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}, {"single_word": True}, {"normalized": True}, {"normalized": False},
                  {"single_word": True, "lstrip": True, "rstrip": True}, {"normalized": False, "lstrip": True}):
        for special in (False, True):
            tokens = [AddedToken(s, special=special, **flags) for s in ("<mask>", "word", "\u00c9clair", "he", "hel", "  ")
                      if not (special and flags.get("normalized") and s > "w")]  # the library does not skip these
            case(f"added {flags} {special}", "bytes", N.Sequence([N.NFC(), N.Lowercase()]), P.ByteLevel(add_prefix_space=False), D.ByteLevel(), None, tokens)
    case("added metaspace", "fallback", None, P.Metaspace(prepend_scheme="first"), D.Metaspace(prepend_scheme="first"), None,
         SPECIAL + [AddedToken("<mask>", lstrip=True, special=True), AddedToken("word", normalized=False), AddedToken("\u2581the", special=False)])
    case("added prepend", "fallback", N.Sequence([N.Prepend("\u2581"), N.Replace(" ", "\u2581")]), None, D.Sequence(spaces), None,
         SPECIAL + [AddedToken("word", normalized=True), AddedToken(" of", normalized=True), AddedToken("<mask>", normalized=False)])
    case("template", "bytes", None, P.ByteLevel(False), D.ByteLevel(),
         X.Sequence([X.TemplateProcessing(single="<s>:1 </s> $A:0 <both>", pair=None, special_tokens=[
             {"id": "<both>", "ids": [401, 5], "tokens": ["</s>", "x"]}, ("<s>", 400), ("</s>", 401)]), X.ByteLevel(trim_offsets=False)]), SPECIAL)
    return out


# ---- Results --------------------------------------------------------------------------------------------------------

def random_texts(n, seed):
    r = random.Random(seed)
    pools = ["abcdefgh xyz ABC", " \t\n\r", "0123456789", ".,;:!?'\"()[]{}<>-_", "\u00e9\u00df\u0130\u01c5\u03a3\u0451", "\u0301\u0308\u0323\u20dd\u0903\u064e", "\u4f60\u597d\u3042\u30a2\ud55c\u1100\u1161\u11a8",
             "\U0001F600\u200d\ufe0f\U0001F1E9", "\ufb01\u2460\u212b\uff21\u00a0\u3000\u2003\u200b\u00ad\ufeff", "\x00\x01\x7f\u0085\ufffd", "\u2581\u0120 "]
    words = ["<s>", "</s>", "<mask>", "word", "\u00c9clair", "[CLS]", "[MASK]", "the", "'s", "n't", "  ", "hello", "<0x41>"]
    for _ in range(n):
        k, s = r.randrange(1, 25), ""
        p = r.sample(pools, r.randrange(1, 5))
        while k:
            x = r.random()
            s += r.choice(words) if x < 0.15 else chr(r.choice([r.randrange(0x20, 0x3000), r.randrange(0x20, 0xD800), r.randrange(0xE000, 0x20000)])) if x < 0.2 else r.choice(r.choice(p))
            k -= 1
        yield s


def to_bytes(text, offsets):
    at, table = 0, [0]
    for c in text:
        at += len(c.encode())
        table.append(at)
    return [table[x] for pair in offsets for x in pair]


def panics(e):
    return "PanicException" in repr(type(e))


def decode(tok, ids, skip):
    try:
        return tok.decode(ids, skip_special_tokens=skip)
    except BaseException as e:
        if not panics(e): raise
        return None


def run(tok, text, offsets, plain_too):
    """None where the library panics: on some texts that a normaliser empties; Strip and BPEDecoder on no tokens."""
    tok.encode_special_tokens = False
    try:
        e = tok.encode(text)
    except BaseException as x:
        if not panics(x) and type(x) is not Exception: raise
        return None
    tok.encode_special_tokens = True
    plain = tok.encode(text).ids
    tok.encode_special_tokens = False
    out = [e.ids, None if not plain_too else 0 if plain == e.ids else plain, decode(tok, e.ids, False), decode(tok, e.ids, True)]
    if out[2] is None or out[3] is None: return None
    for i in (2, 3):
        if out[i] == text: out[i] = 0
    if out[3] == out[2]: out[3] = 1
    if offsets: out.append(to_bytes(text, e.offsets))
    return out


def main():
    args = sys.argv[1:]
    n, seed = 0, 0
    if "--random" in args:
        i = args.index("--random")
        n, seed = int(args[i + 1]), int(args[i + 2])
        del args[i:i + 3]
    path = args[0] if args else os.path.join(FOLDER, "pipelines.json")
    texts = TEXTS + list(random_texts(n, seed))
    model_list, cases = all_models(), []
    r = random.Random(1)
    for name, model, norm, pre, dec, post, added in all_cases():
        tok = Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model_list[model]}))
        if norm: tok.normalizer = norm
        if pre: tok.pre_tokenizer = pre
        if dec: tok.decoder = dec
        if post: tok.post_processor = post
        if added:
            tok.add_tokens([a for a in added if not a.special])
            tok.add_special_tokens([a for a in added if a.special])
        whole = json.loads(tok.to_str())
        tok = Tokenizer.from_str(json.dumps(whole))
        entry = {k: whole[k] for k in ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder") if whole[k]}
        entry.update(name=name, model=model, results={})
        shifts = '"add_prefix_space": true' in json.dumps(entry) or "Metaspace" in json.dumps(entry) or "strip\": true" in json.dumps(added and entry)
        entry["exact"] = not (norm or post or shifts or model in ("chars_bare", "unigram_bytes"))
        few = n == 0 and name not in ("llama3", "o200k", "gemma", "llama2", "unigram", "bert")
        chosen = r.sample(range(len(texts)), 11) if few else range(len(texts))
        for i in sorted(chosen):
            result = run(tok, texts[i], model != "chars_bare" and (n > 0 or (i % 4 == len(cases) % 4 and len(texts[i]) < 60)), model[:4] not in ("unig", "word"))
            if result: entry["results"][str(i)] = result
            else: print("no result:", name, repr(texts[i]))
        cases.append(entry)
    with open(path, "w") as f:
        f.write(json.dumps({"models": model_list, "texts": texts, "cases": cases}, ensure_ascii=False, separators=(",", ":")).replace('{"added', '\n{"added') + "\n")
    print(len(cases), "cases,", os.path.getsize(path), "bytes")


if __name__ == "__main__": main()
