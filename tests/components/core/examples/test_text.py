"""Claims about texts: both forms of the tokenisation agree, and a vocabulary is what it says."""

import dataclasses
import itertools
import pickle
import random
import re
import unicodedata
from collections import Counter

import numpy as np
import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples import characters
from tpu_components.core.examples.interface import TextInput
from tpu_components.core.examples.text import (
    TOKENIZATIONS,
    UNICODE_WORDS,
    WORDS_AND_CHARACTERS,
    Tokenizer,
    UnreadableError,
    build_vocabulary,
    copy_vocabulary,
    load_vocabulary,
    save_vocabulary,
    split_words,
    tokenizer_ops,
)
from tpu_components.core.machines import device

GIVEN = TextInput(6, 60, "", "words", "start")
NASTY = [
    *("", "   ", "\x00", "a\x00b", "<br />", "<BR/>x<br   />y<br>z", "<br\n/>", "It's GREAT!!! 10/10", "'", "''"),
    *("café CAFÉ naïve", "\u00a0no-break\u2028space", "x" * 20_000, "a " * 2000, "ﬁ İ ß Ω", "日本 語"),
    *("\r\n\t\v\f a", "a\x85b", "\x7f", "[UNK] [PAD]", "e\u0301", "_a_b_", "b<b<br />r />", "<br<br />/>"),
    *("\U0001f600 ok", "\ufeffgood", "a\ufeffb", "\ufeff"),
]


# Scripts with and without spaces, both Unicode forms, characters that are removed, and lower-case letters that depend
# on the context or the language in other rules.
UNICODE = [
    *(
        "CAFÉ cafe\u0301 CAFE\u0301",
        "no\u00a0break\u3000wide\u200bzero",
        "“don’t” ‘DON’T’",
        "ΛΟΓΟΣ λόγος",
        "İSTANBUL ışık",
    ),
    *(
        "ＴＶ５Ａ＇s！",
        "电影很好看，演员ABC表演精彩。",
        "か\u3099が カ\u3099ー々〇",
        "ภาษาไทย ๒๕๖๐",
        "ភាសាខ្មែរ",
        "한국어 \u1112\u1161\u11ab",
        "\u3099a",
    ),
    *(
        "great😀!👍🏽❤\ufe0f 👨\u200d👩",
        "soft\u00adhyphen می\u200cخواهم",
        "10€ £5 a→b",
        "Ⓐ ⓐ ß ẞ ǅ",
        "字\u3000\u3099 字\ufe00\u3099\u309a字",
        "\ufffd。",
    ),
]
# What is cut off does not depend on the rule.
FORMS = [*((rule, "start") for rule in TOKENIZATIONS), ("words", "end")]


def _ids_of_both(inputs, vocabulary, texts):
    """Return the IDs of texts from TensorFlow, and those from Python."""
    import tensorflow as tf

    device.prepare("tensorflow", "cpu", 1, "float32")
    tokenize, _ = tokenizer_ops(inputs, vocabulary)
    of_tensorflow = tf.function(tokenize, input_signature=[tf.TensorSpec([None], tf.string)])(tf.constant(texts))
    tokenizer = Tokenizer(inputs, vocabulary)
    assert of_tensorflow.dtype == tf.int32
    return of_tensorflow.numpy(), np.stack([tokenizer.encode(text).ids for text in texts])


@pytest.mark.parametrize(("rule", "truncate"), FORMS)
def test_python_and_tensorflow_give_the_same_ids(rule, truncate):
    draw = random.Random(0)
    alphabet = "aA'<br />\x00\n. é\u00a0İ日😀0_[]-\x85\ufeff" + "".join(UNICODE)
    samples = [text.encode() for text in (*NASTY, *UNICODE)]
    texts = [*samples, b""]
    texts += ["".join(draw.choices(alphabet, k=draw.randint(0, 40))).encode() for _ in range(2000)]
    texts += [draw.randbytes(draw.randint(0, 30)) for _ in range(1000)]
    counts = Counter(TOKENIZATIONS[rule].split(b" ".join(samples)))
    vocabulary = build_vocabulary(TOKENIZATIONS[rule].unite(counts), 150)
    inputs = dataclasses.replace(GIVEN, vocabulary_size=150, tokenization=rule, truncate=truncate)
    of_tensorflow, of_python = _ids_of_both(inputs, vocabulary, texts)
    assert len(np.unique(of_python)) > 50
    np.testing.assert_array_equal(of_tensorflow, of_python)


@pytest.mark.parametrize("rule", [UNICODE_WORDS, WORDS_AND_CHARACTERS])
def test_python_and_tensorflow_divide_texts_with_each_character_of_unicode_alike(rule):
    import tensorflow as tf

    # Beyond the third plane, all characters but those of the specials' block are unassigned or private.
    planes = itertools.chain(
        range(0xD800), range(0xE000, 0x32000), range(0x32000, 0x110000, 97), range(0xE0000, 0xE0200)
    )
    # Each character stands between two letters, and before a combining mark.
    words = [f"a{chr(character)}b{chr(character)}\u3099" for character in planes]
    texts = [" ".join(words[i : i + 64]).encode() for i in range(0, len(words), 64)]
    split, _ = TOKENIZATIONS[rule].split_ops()
    joined = tf.function(lambda texts: tf.strings.reduce_join(split(texts), axis=-1, separator=" "))(tf.constant(texts))
    assert joined.numpy().tolist() == [b" ".join(TOKENIZATIONS[rule].split(text)) for text in texts]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", []),
        ("It's GREAT!<br />10/10", ["it's", "great", "10", "10"]),
        ("well-made, isn't it?", ["well", "made", "isn't", "it"]),
        ("CAFÉ", ["cafÉ"]),  # Only ASCII is put into lower case.
        ("a\x00b\nc", ["a", "b", "c"]),
        ("\ufeffgood film\ufeffbad", ["good", "film", "bad"]),
    ],
)
def test_words_are_letters_digits_and_apostrophes(text, tokens):
    assert split_words(text.encode()) == [token.encode() for token in tokens]


@pytest.mark.parametrize(
    ("rule", "text", "tokens"),
    [
        (UNICODE_WORDS, "no\u00a0break\u3000wide\u200bzero\u2028line", "no break wide zero line"),
        (UNICODE_WORDS, "«CAFÉ» – ЖУК… ¿ΛΌΓΟΣ?", "café жук λόγοσ"),
        (UNICODE_WORDS, "Don’t ‘shout’, ＴＶ５！", "don't shout' tv5"),
        (UNICODE_WORDS, "soft\u00adhyphen \u200fעברית\u200e", "softhyphen עברית"),
        (UNICODE_WORDS, "İSTANBUL GROẞ", "istanbul groß"),
        (UNICODE_WORDS, "great😀! 10€", "great 😀 10 €"),
        (UNICODE_WORDS, "电影 很好看，演员", "电影 很好看 演员"),
        (WORDS_AND_CHARACTERS, "电影很好看，ABC演员。", "电 影 很 好 看 abc 演 员"),
        (WORDS_AND_CHARACTERS, "𠀀𰻞a", "𠀀 𰻞 a"),
        (WORDS_AND_CHARACTERS, "スーパーで 々〇", "ス ー パ ー で 々 〇"),
        (WORDS_AND_CHARACTERS, "か\u3099b", "か\u3099 b"),  # A mark stays with its character.
        (WORDS_AND_CHARACTERS, "ที่นี่ ๒๕๖๐", "ที่ นี่ ๒๕๖๐"),  # Numbers are words.
        (WORDS_AND_CHARACTERS, "한국어 영화", "한국어 영화"),  # Korean has spaces.
        (WORDS_AND_CHARACTERS, "。、！", ""),
    ],
)
def test_unicode_rules_treat_characters_by_their_classes(rule, text, tokens):
    assert TOKENIZATIONS[rule].split(text.encode()) == [token.encode() for token in tokens.split()]


@pytest.mark.parametrize("rule", TOKENIZATIONS)
def test_every_rule_divides_ascii_texts_alike(rule):
    draw = random.Random(1)
    for _ in range(2000):
        text = bytes(draw.choices(range(128), k=draw.randint(0, 40))) + draw.choice([b"", b"<br />"])
        assert TOKENIZATIONS[rule].split(text) == split_words(text)


@pytest.mark.parametrize("rule", TOKENIZATIONS)
def test_has_words_is_whether_a_text_has_a_token(rule):
    rule = TOKENIZATIONS[rule]
    texts = [*NASTY, *UNICODE, "。" * 99, "。" * 99 + "字", "\u3000", "<br />。", "é"]
    assert [rule.has_words(text.encode()) for text in texts] == [bool(rule.split(text.encode())) for text in texts]


@pytest.mark.parametrize("rule", [UNICODE_WORDS, WORDS_AND_CHARACTERS])
@pytest.mark.parametrize("text", ["Café café", "Tiếng Việt", "한국어 영화", "がギ"])
def test_both_unicode_forms_of_a_word_have_one_id(rule, text):
    forms = [unicodedata.normalize(form, text).encode() for form in ("NFC", "NFD")]
    counts = TOKENIZATIONS[rule].unite(Counter(token for form in forms for token in TOKENIZATIONS[rule].split(form)))
    vocabulary = build_vocabulary(counts, 100)
    assert {count % 2 for count in counts.values()} == {0}  # Each word stands once in each form.
    tokenizer = Tokenizer(TextInput(8, 100, "", rule, "end"), vocabulary)
    composed, decomposed = (tokenizer.encode(form).ids.tolist() for form in forms)
    assert composed == decomposed
    assert 1 not in composed


def test_a_rule_of_a_newer_version_is_refused_with_advice():
    with pytest.raises(InputError, match=r"tokenization 'syllables': expected one of words_and_characters, .*upgrade"):
        Tokenizer(dataclasses.replace(GIVEN, tokenization="syllables"), ())


def test_a_tokenizer_travels_to_other_processes():
    tokenizer = pickle.loads(pickle.dumps(Tokenizer(dataclasses.replace(GIVEN, tokenization=UNICODE_WORDS), (b"a",))))
    assert tokenizer.encode("À A".encode()).ids.tolist() == [0, 0, 0, 0, 1, 2]


@pytest.mark.skipif(unicodedata.unidata_version != "14.0.0", reason="Python 3.11 has the data of Unicode 14.0")
def test_classes_of_characters_are_those_of_unicode_14():
    lists = {
        "ignored": characters.IGNORED,
        "separators": characters.SEPARATORS,
        "symbols": characters.SYMBOLS,
        "letters": characters.LETTERS_WITHOUT_SPACES,
        "marks": characters.MARKS_WITHOUT_SPACES,
    }
    places = {name: [c for each in characters.parse_ranges(text) for c in each] for name, text in lists.items()}
    classes = {character: name for name, its in places.items() for character in its}
    assert len(classes) == sum(map(len, places.values()))  # No character has two classes.
    lower = characters.parse_replacements(characters.CAPITALS)
    variants = characters.parse_replacements(characters.ASCII_VARIANTS)
    scripts = "THAI|LAO|MYANMAR|KHMER|CJK|HIRAGANA|KATAKANA|BOPOMOFO|HENTAIGANA"
    for number in (*range(128, 0xD800), *range(0xE000, 0x110000)):
        text = chr(number)
        category = unicodedata.category(chr(number))
        its_class = classes.get(number)
        assert lower.get(number, number) == ord("σ" if text == "ς" else text.lower()[0]), hex(number)
        if its_class == "ignored":
            assert category in ("Cf", "Mn", "Cn"), hex(number)
        elif number in variants:
            assert unicodedata.normalize("NFKC", text).lower() == chr(variants[number]) or text == "’"
        elif category[0] in "ZP" or category == "Cc" or number in (0x200B, 0xFEFF, 0xFFFD):
            assert its_class == "separators", hex(number)
        elif category[0] == "S":
            assert its_class == "symbols", hex(number)
        elif its_class in ("separators", "symbols"):
            assert category == "Cn", hex(number)
        elif its_class is not None and category != "Cn":
            others = "HANGZHOU|IDEOGRAPHIC|MASU|VERTICAL KANA|HANGUL.*TONE"
            assert re.search(f"{scripts}|{others}", unicodedata.name(text)), hex(number)
            assert (category[0] == "M") == (its_class == "marks"), hex(number)
        elif category[0] == "L":
            assert not re.match(scripts, unicodedata.name(text, "")), hex(number)


def test_vocabulary_is_ordered_by_frequency_and_then_by_bytes():
    counts = Counter({b"rare": 1, b"b": 2, b"a": 2, b"often": 3})
    assert build_vocabulary(counts, 5) == (b"often", b"a", b"b")
    assert build_vocabulary(counts, 100) == (b"often", b"a", b"b", b"rare")


@pytest.mark.parametrize(
    ("truncate", "text", "ids"),
    [
        ("start", b"a b c d", [3, 1, 4]),
        ("end", b"a b c d", [2, 3, 1]),
        ("start", b"a", [0, 0, 2]),
        ("end", b"a", [2, 0, 0]),
        ("start", b"", [0, 0, 0]),
    ],
)
def test_texts_are_cut_and_padded_on_the_side_that_truncate_names(truncate, text, ids):
    given = dataclasses.replace(GIVEN, num_tokens=3, truncate=truncate)
    encoded = Tokenizer(given, (b"a", b"b", b"d")).encode(text)
    assert encoded.ids.tolist() == ids
    assert encoded.ids.dtype == np.int32
    assert (encoded.num_tokens, encoded.num_unknown) == (len(text.split()), ids.count(1))


def test_a_stored_text_is_utf_8_with_a_word_in_it():
    tokenizer = Tokenizer(GIVEN, (b"a",))
    assert tokenizer.encode_stored("\ufeffA".encode()).ids.tolist() == tokenizer.read("a").tolist()
    for content, reason in (
        (b"a\xff", "not UTF-8: invalid start byte at byte 1"),
        (b"\xef\xbb\xbf?!", "no word in it"),
    ):
        with pytest.raises(UnreadableError, match=reason):
            tokenizer.encode_stored(content)


def test_text_that_no_file_can_hold_is_refused():
    with pytest.raises(InputError, match=r"the text cannot be encoded as UTF-8 \(.*surrogates not allowed\)\. Remove"):
        Tokenizer(GIVEN, ()).read("\ud800")


def test_vocabulary_comes_back_and_travels(tmp_path):
    vocabulary = (b"the", "é\x85".encode())
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    given = dataclasses.replace(GIVEN, vocabulary_sha256=save_vocabulary(vocabulary, tmp_path / "one"))
    assert (tmp_path / "one" / "vocabulary.txt").read_bytes().startswith(b"[PAD]\n[UNK]\nthe\n")
    copy_vocabulary(tmp_path / "one", tmp_path / "two", given)
    assert load_vocabulary(tmp_path / "two", given) == vocabulary


def test_vocabulary_that_is_missing_or_changed_is_refused(tmp_path):
    given = dataclasses.replace(GIVEN, vocabulary_sha256=save_vocabulary([b"the"], tmp_path))
    (tmp_path / "vocabulary.txt").write_bytes(b"[PAD]\n[UNK]\nteh\n")
    with pytest.raises(InputError, match=rf"has changed: expected SHA-256 {given.vocabulary_sha256[:16]}"):
        load_vocabulary(tmp_path, given)
    (tmp_path / "vocabulary.txt").unlink()
    with pytest.raises(InputError, match=r"Cannot read the vocabulary .*vocabulary.txt: No such file"):
        load_vocabulary(tmp_path, given)
