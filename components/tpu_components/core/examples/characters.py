"""Character classes that define how texts are split into tokens: non-ASCII characters of Unicode 14.0.

See `text` for the rules.

The classes are constants, because a model must read a text in the same way on every machine, but the categories in
`unicodedata` and in TensorFlow change with the version. Each list has hexadecimal code points and inclusive ranges.
Ranges are joined across unassigned code points, because most of these will belong to the same class.
`tests/components/core/examples/test_text.py` compares the lists with the Unicode Character Database.
"""

from collections.abc import Iterator

# Invisible characters, from the property Default_Ignorable_Code_Point: soft hyphens, joiners, directions, variants.
IGNORED = """
ad 34f 61c 180b-180f 200c-200f 202a-202e 2060-206f fe00-fe0f 1d173-1d17a e0001-e007f e0100-e01ef
"""
# Categories Z, P and Cc, the zero width space, the byte-order mark and the replacement character, but no apostrophes.
SEPARATORS = """
80-a1 a7 ab b6-b7 bb bf 37e 387 55a-55f 589-58a 5be 5c0 5c3 5c6 5f3-5f4 609-60a 60c-60d 61b 61d-61f 66a-66d
6d4 700-70d 7f7-7f9 830-83e 85e 964-965 970 9fd a76 af0 c77 c84 df4 e4f e5a-e5b f04-f12 f14 f3a-f3d f85
fd0-fd4 fd9-fda 104a-104f 10fb 1360-1368 1400 166e 1680 169b-169c 16eb-16ed 1735-1736 17d4-17d6 17d8-17da
1800-180a 1944-1945 1a1e-1a1f 1aa0-1aa6 1aa8-1aad 1b5a-1b60 1b7d-1b7e 1bfc-1bff 1c3b-1c3f 1c7e-1c7f 1cc0-1cc7
1cd3 2000-200b 2010-2018 201a-2029 202f-2043 2045-2051 2053-205f 207d-207e 208d-208e 2308-230b 2329-232a
2768-2775 27c5-27c6 27e6-27ef 2983-2998 29d8-29db 29fc-29fd 2cf9-2cfc 2cfe-2cff 2d70 2e00-2e2e 2e30-2e4f
2e52-2e5d 3000-3003 3008-3011 3014-301f 3030 303d 30a0 30fb a4fe-a4ff a60d-a60f a673 a67e a6f2-a6f7 a874-a877
a8ce-a8cf a8f8-a8fa a8fc a92e-a92f a95f a9c1-a9cd a9de-a9df aa5c-aa5f aade-aadf aaf0-aaf1 abeb fd3e-fd3f
fe10-fe19 fe30-fe61 fe63 fe68 fe6a-fe6b feff-ff03 ff05-ff06 ff08-ff0a ff0c-ff0f ff1a-ff1b ff1f-ff20 ff3b-ff3d
ff3f ff5b ff5d ff5f-ff65 fffd 10100-10102 1039f 103d0 1056f 10857 1091f 1093f 10a50-10a58 10a7f 10af0-10af6
10b39-10b3f 10b99-10b9c 10ead 10f55-10f59 10f86-10f89 11047-1104d 110bb-110bc 110be-110c1 11140-11143
11174-11175 111c5-111c8 111cd 111db 111dd-111df 11238-1123d 112a9 1144b-1144f 1145a-1145d 114c6 115c1-115d7
11641-11643 11660-1166c 116b9 1173c-1173e 1183b 11944-11946 119e2 11a3f-11a46 11a9a-11a9c 11a9e-11aa2
11c41-11c45 11c70-11c71 11ef7-11ef8 11fff 12470-12474 12ff1-12ff2 16a6e-16a6f 16af5 16b37-16b3b 16b44
16e97-16e9a 16fe2 1bc9f 1da87-1da8b 1e95e-1e95f
"""
# Category S, and all of the blocks of emoji.
SYMBOLS = """
a2-a6 a8-a9 ac ae-b1 b4 b8 d7 f7 2c2-2c5 2d2-2df 2e5-2eb 2ed 2ef-2ff 375 384-385 3f6 482 58d-58f 606-608 60b
60e-60f 6de 6e9 6fd-6fe 7f6 7fe-7ff 888 9f2-9f3 9fa-9fb af1 b70 bf3-bfa c7f d4f d79 e3f f01-f03 f13 f15-f17
f1a-f1f f34 f36 f38 fbe-fc5 fc7-fcf fd5-fd8 109e-109f 1390-1399 166d 17db 1940 19de-19ff 1b61-1b6a 1b74-1b7c
1fbd 1fbf-1fc1 1fcd-1fcf 1fdd-1fdf 1fed-1fef 1ffd-1ffe 2044 2052 207a-207c 208a-208c 20a0-20c0 2100-2101
2103-2106 2108-2109 2114 2116-2118 211e-2123 2125 2127 2129 212e 213a-213b 2140-2144 214a-214d 214f 218a-2307
230c-2328 232b-244a 249c-24e9 2500-2767 2794-27c4 27c7-27e5 27f0-2982 2999-29d7 29dc-29fb 29fe-2bff 2ce5-2cea
2e50-2e51 2e80-2ffb 3004 3012-3013 3020 3036-3037 303e-303f 309b-309c 3190-3191 3196-319f 31c0-31e3 3200-321e
322a-3247 3250 3260-327f 328a-32b0 32c0-33ff 4dc0-4dff a490-a4c6 a700-a716 a720-a721 a789-a78a a828-a82b
a836-a839 aa77-aa79 ab5b ab6a-ab6b fb29 fbb2-fbc2 fd40-fd4f fdcf fdfc-fdff fe62 fe64-fe66 fe69 ff04 ff0b
ff1c-ff1e ff3e ff40 ff5c ff5e ffe0-ffee fffc 10137-1013f 10179-10189 1018c-101fc 10877-10878 10ac8 1173f
11fd5-11ff1 16b3c-16b3f 16b45 1bc9c 1cf50-1d164 1d16a-1d16c 1d183-1d184 1d18c-1d1a9 1d1ae-1d241 1d245
1d300-1d356 1d6c1 1d6db 1d6fb 1d715 1d735 1d74f 1d76f 1d789 1d7a9 1d7c3 1d800-1d9ff 1da37-1da3a 1da6d-1da74
1da76-1da83 1da85-1da86 1e14f 1e2ff 1ecac 1ecb0 1ed2e 1eef0-1f0ff 1f10d-1fbca
"""
# Letters of scripts that are written without spaces between words: Han, kana, Bopomofo, Thai, Lao, Khmer and Myanmar.
# The planes of rare Han characters are listed as a whole. Unlike the letters of these scripts, their digits form words.
LETTERS_WITHOUT_SPACES = """
e01-e30 e32-e33 e40-e46 e81-eb0 eb2-eb3 ebd-ec6 edc-edf 1000-102a 103f 1050-1055 105a-105d 1061 1065-1066
106e-1070 1075-1081 108e 1780-17b3 17d7 17dc 3005-3007 3021-3029 3031-3035 3038-303c 3041-3096 309d-309f
30a1-30fa 30fc-312f 31a0-31bf 31f0-31ff 3400-4dbf 4e00-9fff a9e0-a9e4 a9e6-a9ef a9fa-a9fe aa60-aa76 aa7a
aa7e-aa7f f900-fad9 ff66-ff9f 1aff0-1b167 20000-2fffd 30000-3fffd
"""
# Combining marks of these scripts, which belong to the token of the preceding character.
MARKS_WITHOUT_SPACES = """
e31 e34-e3a e47-e4e eb1 eb4-ebc ec8-ecd 102b-103e 1056-1059 105e-1060 1062-1064 1067-106d 1071-1074 1082-108d
108f 109a-109d 17b4-17d3 17dd 302a-302f 3099-309a a9e5 aa7b-aa7d
"""
# Typographic apostrophes and full-width letters and digits; after the colon, the offset of the ASCII character.
ASCII_VARIANTS = "2019:-1ff2 ff07:-fee0 ff10-ff19:-fee0 ff21-ff3a:-fec0 ff41-ff5a:-fee0"
# Upper-case letters; after the colon, the offset of the lower-case letter. `/2` means every other code point. Each
# letter becomes one letter, whatever its neighbours: İ becomes i, and both lower-case forms of the Greek sigma are one.
CAPITALS = """
c0-d6:20 d8-de:20 100-12e/2:1 130:-c7 132-136/2:1 139-147/2:1 14a-176/2:1 178:-79 179-17d/2:1 181:d2
182-184/2:1 186:ce 187:1 189-18a:cd 18b:1 18e:4f 18f:ca 190:cb 191:1 193:cd 194:cf 196:d3 197:d1 198:1 19c:d3
19d:d5 19f:d6 1a0-1a4/2:1 1a6:da 1a7:1 1a9:da 1ac:1 1ae:da 1af:1 1b1-1b2:d9 1b3-1b5/2:1 1b7:db 1b8:1 1bc:1
1c4:2 1c5:1 1c7:2 1c8:1 1ca:2 1cb-1db/2:1 1de-1ee/2:1 1f1:2 1f2-1f4/2:1 1f6:-61 1f7:-38 1f8-21e/2:1 220:-82
222-232/2:1 23a:2a2b 23b:1 23d:-a3 23e:2a28 241:1 243:-c3 244:45 245:47 246-24e/2:1 370-372/2:1 376:1 37f:74
386:26 388-38a:25 38c:40 38e-38f:3f 391-3a1:20 3a3-3ab:20 3c2:1 3cf:8 3d8-3ee/2:1 3f4:-3c 3f7:1 3f9:-7 3fa:1
3fd-3ff:-82 400-40f:50 410-42f:20 460-480/2:1 48a-4be/2:1 4c0:f 4c1-4cd/2:1 4d0-52e/2:1 531-556:30
10a0-10c5:1c60 10c7:1c60 10cd:1c60 13a0-13ef:97d0 13f0-13f5:8 1c90-1cba:-bc0 1cbd-1cbf:-bc0 1e00-1e94/2:1
1e9e:-1dbf 1ea0-1efe/2:1 1f08-1f0f:-8 1f18-1f1d:-8 1f28-1f2f:-8 1f38-1f3f:-8 1f48-1f4d:-8 1f59-1f5f/2:-8
1f68-1f6f:-8 1f88-1f8f:-8 1f98-1f9f:-8 1fa8-1faf:-8 1fb8-1fb9:-8 1fba-1fbb:-4a 1fbc:-9 1fc8-1fcb:-56 1fcc:-9
1fd8-1fd9:-8 1fda-1fdb:-64 1fe8-1fe9:-8 1fea-1feb:-70 1fec:-7 1ff8-1ff9:-80 1ffa-1ffb:-7e 1ffc:-9 2126:-1d5d
212a:-20bf 212b:-2046 2132:1c 2160-216f:10 2183:1 24b6-24cf:1a 2c00-2c2f:30 2c60:1 2c62:-29f7 2c63:-ee6
2c64:-29e7 2c67-2c6b/2:1 2c6d:-2a1c 2c6e:-29fd 2c6f:-2a1f 2c70:-2a1e 2c72:1 2c75:1 2c7e-2c7f:-2a3f
2c80-2ce2/2:1 2ceb-2ced/2:1 2cf2:1 a640-a66c/2:1 a680-a69a/2:1 a722-a72e/2:1 a732-a76e/2:1 a779-a77b/2:1
a77d:-8a04 a77e-a786/2:1 a78b:1 a78d:-a528 a790-a792/2:1 a796-a7a8/2:1 a7aa:-a544 a7ab:-a54f a7ac:-a54b
a7ad:-a541 a7ae:-a544 a7b0:-a512 a7b1:-a52a a7b2:-a515 a7b3:3a0 a7b4-a7c2/2:1 a7c4:-30 a7c5:-a543 a7c6:-8a38
a7c7-a7c9/2:1 a7d0:1 a7d6-a7d8/2:1 a7f5:1 ff21-ff3a:20 10400-10427:28 104b0-104d3:28 10570-10594/2:27
10571-10579/2:27 1057d-10589/2:27 1058d-10591/2:27 10595:27 10c80-10cb2:40 118a0-118bf:20 16e40-16e5f:20
1e900-1e921:22
"""


def parse_ranges(ranges: str) -> Iterator[range]:
    """Yield the ranges in a list of code points, such as `SEPARATORS`.

    Example:
        >>> list(parse_ranges("a1 a7-a9"))
        [range(161, 162), range(167, 170)]
    """
    for item in ranges.split():
        first, _, last = item.partition("-")
        yield range(int(first, 16), int(last or first, 16) + 1)


def as_class(ranges: str) -> str:
    """Convert a list of code points to the content of a character class in a regular expression, for Python and RE2.

    Example:
        >>> print(as_class("a1 1f600-1f64f"))
        ¡😀-🙏
    """
    return "".join(
        f"{chr(each[0])}-{chr(each[-1])}" if len(each) > 1 else chr(each[0]) for each in parse_ranges(ranges)
    )


def parse_replacements(runs: str) -> dict[int, int]:
    """Parse a list such as `CAPITALS` to {code point: the code point that replaces it}.

    An item has the form `FIRST-LAST/STEP:OFFSET`, where `-LAST` and `/STEP` are optional. Code points and offsets are
    hexadecimal.

    Example:
        >>> parse_replacements("c0-c1:20 100-102/2:1 130:-c7")
        {192: 224, 193: 225, 256: 257, 258: 259, 304: 105}
    """
    replacements = {}
    for run in runs.split():
        span, _, distance = run.partition(":")
        span, _, step = span.partition("/")
        for characters in parse_ranges(span):
            for character in characters[:: int(step or 1)]:
                replacements[character] = character + int(distance, 16)
    return replacements
