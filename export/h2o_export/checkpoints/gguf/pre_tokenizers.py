"""How llama.cpp splits a text before byte-level BPE, by the name in `tokenizer.ggml.pre`.

Each pattern in turn splits what the patterns before it left: matches, and what is between them. The patterns
say what llama.cpp computes, which is not always what a model was trained with. Where llama.cpp takes all letters
for capitals, or only ASCII digits for digits, so do they.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DEFAULT = "default"  # also of files without a name
_SUFFIX = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKED_WORD = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_PATH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = rf"\s*[\r\n]+|{_SPACES}"
_SPACES_BY_HALVES = "|".join(rf"\s{{{size}}}(?!\S)" for size in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
_GROUPED_DIGITS = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"  # threes, counted from the last digit
_CJK = "[\u4e00-\u9fa5\u3040-\u30ff]+"
_CJK_OF_DEEPSEEK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_HAN = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b820-\U0002ebef"
    "\U0002f800-\U0002fa1f"
)
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_SOUTH_EAST_ASIA = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_PUNCTUATED_WORD = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_NO_PUNCTUATION = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


@dataclass(frozen=True)
class PreTokenizer:
    """patterns: of the regular expressions of the package tokenizers.

    whole_words: whether a piece that is a token becomes that token, whatever the merges give
    adds_bos:    whether a text begins with BOS, where the file does not say
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False

    def to_json(self) -> dict[str, Any]:
        """The member `pre_tokenizer` of tokenizer.json."""
        splits = [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
            for pattern in self.patterns
        ]
        as_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        return {"type": "Sequence", "pretokenizers": [*splits, as_bytes]}


def _any_of(*alternatives: str) -> str:
    return "|".join(alternatives)


def _by_case(letters: str, digits: str, suffix: str = "", upper: str = "a-z", lower: str = "A-Z") -> str:
    """Words begin at a capital; `upper` and `lower` are the letters that are never capitals, or always."""
    big, small = f"[{letters}&&[^{upper}]]", f"[{letters}&&[^{lower}]]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return _any_of(f"{lead}{big}*{small}+{suffix}", f"{lead}{big}+{small}*{suffix}", digits, _PATH, _LINES)


_LLAMA3 = _any_of(_SUFFIX, _WORD, r"\p{N}{1,3}", _OTHERS, _LINES)
_QWEN2 = _any_of(_SUFFIX, _WORD, r"\p{N}", _OTHERS, _LINES)
_GPT4O = _by_case(r"\p{L}", r"\p{N}{1,3}", f"(?:{_SUFFIX})?")
# llama.cpp takes every letter for a capital and for a small one.
_UNCASED = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+" + f"(?:{_SUFFIX})?"
_DEEPSEEK3 = (r"\p{N}{1,3}", _CJK, _any_of(rf"{_PUNCTUATED_WORD}[\r\n]*", _LINES))

_FAMILIES: dict[tuple[str, ...], PreTokenizer] = {
    (DEFAULT,): PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    (
        "gpt-2",
        "phi-2",
        "jina-es",
        "jina-de",
        "gigachat",
        "jina-v2-es",
        "jina-v2-de",
        "a.x-4.0",
        "mellum",
        "modern-bert",
        "mpt",
        "olmo",
        "jais",
        "trillion",
        "granite-docling",
        "exaone4",
    ): PreTokenizer((_GPT2,)),
    (
        "starcoder",
        "refact",
        "command-r",
        "smollm",
        "codeshell",
        "exaone",
        "minerva-7b",
        "mellum2",
    ): PreTokenizer((r"\p{N}", _GPT2)),
    (
        "llama3",
        "llama-v3",
        "llama-bpe",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
    ): PreTokenizer((_LLAMA3,), whole_words=True, adds_bos=True),
    ("dbrx", "smaug-bpe", "glm4", "glm5", "chatglm-bpe"): PreTokenizer((_LLAMA3,)),
    ("jais-2",): PreTokenizer(
        (_any_of(_SUFFIX, _WORD, r"\p{N}{1,3}", _OTHERS, r"\s*[\r\n]+", _SPACES_BY_HALVES, r"\s"),)
    ),
    ("minicpm5",): PreTokenizer(
        (r"\p{N}{1,3}", _any_of(_SUFFIX, _WORD, r"\p{N}+", _OTHERS, _LINES)), whole_words=True
    ),
    ("k2-horizon",): PreTokenizer(
        (
            _any_of(
                _SUFFIX,
                "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}\u200c\u200d]+",
                r"\p{N}{1,3}",
                _OTHERS,
                _LINES,
            ),
        )
    ),
    (
        "qwen2",
        "deepseek-r1-qwen",
        "kormo",
        "f2llmv2",
        "megrez",
        "stablelm2",
        "hunyuan",
        "solar-open",
        "grok-2",
        "bailingmoe",
        "bailingmoe2",
        "llada-moe",
    ): PreTokenizer((_QWEN2,)),
    ("laguna",): PreTokenizer((r"[^\n]+|\n+", _QWEN2)),
    ("ufakzeka",): PreTokenizer((_any_of(_WORD, r"\p{N}", _OTHERS, _LINES),)),
    ("qwen35",): PreTokenizer(
        (_any_of(_SUFFIX, _MARKED_WORD, r"\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", _LINES),)
    ),
    ("seed-coder",): PreTokenizer((_any_of(_SUFFIX, _WORD, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+", _LINES),)),
    ("exaone-moe",): PreTokenizer(
        (
            _any_of(
                _SUFFIX,
                r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
                r"\p{N}",
                r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
                r"\s*[\r\n]",
                _SPACES,
            ),
        )
    ),
    ("deepseek-llm",): PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_CASED}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+\z",
            _CJK_OF_DEEPSEEK,
            r"\p{N}+",
        )
    ),
    ("deepseek-coder",): PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_OF_DEEPSEEK, r"\p{N}")),
    ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"): PreTokenizer(_DEEPSEEK3),
    ("spark2_5",): PreTokenizer(
        (r"\p{N}{1,3}", _CJK, _any_of(_PUNCTUATED_WORD, r"[\r\n]", _SPACES), r"\p{N}")
    ),
    # What is before a number stays with its first digits.
    ("afmoe",): PreTokenizer((rf"\P{{N}}*{_GROUPED_DIGITS}", _SOUTH_EAST_ASIA, _DEEPSEEK3[-1])),
    ("superbpe",): PreTokenizer((r"\p{N}+", r"(?=(?:[0-9]{3})+(?![0-9]))")),
    ("kimi-k2",): PreTokenizer(
        (
            _any_of(
                f"[{_HAN}]+",
                rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+(?:{_SUFFIX})?",
                r"\p{N}{1,3}",
                _OTHERS,
                _LINES,
            ),
        )
    ),
    ("tekken",): PreTokenizer((_by_case(r"\p{L}", r"\p{N}"),), whole_words=True, adds_bos=True),
    ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"): PreTokenizer((_GPT4O,)),
    ("granite-embed-multi-97m",): PreTokenizer(
        (_by_case(r"\p{L}\p{M}", r"\p{N}{1,3}", f"(?:{_SUFFIX})?"),), whole_words=True
    ),
    ("tiny_aya", "cohere2moe"): PreTokenizer(
        (
            _GROUPED_DIGITS,
            _any_of(_UNCASED, r"\p{N}{1,3}", _PATH, _LINES),
        )
    ),
    ("youtu",): PreTokenizer(
        (
            "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
            "\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u30ff]+",
            _any_of(_UNCASED, r"\p{N}", _PATH, _LINES),
        ),
        whole_words=True,
    ),
    ("poro-chat", "bloom", "gpt3-finnish"): PreTokenizer((_NO_PUNCTUATION,)),
    ("viking",): PreTokenizer((_NO_PUNCTUATION, r"\p{N}")),
    ("falcon",): PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")),
    ("chameleon",): PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        adds_bos=True,
    ),
}
PRE_TOKENIZERS = {name: one for names, one in _FAMILIES.items() for name in names}
