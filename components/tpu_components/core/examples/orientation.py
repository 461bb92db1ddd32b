"""The EXIF orientation of JPEG and PNG files, with TensorFlow operations that a SavedModel can contain.

`images` reads the orientation with Pillow. TensorFlow's decoders ignore it.
"""

from typing import Any

from tpu_components.core.base.frameworks import tf

_HEAD_BYTES = 1 << 18  # Metadata are at the start of a file. A JPEG segment has at most 64 KiB.
_MOST_PARTS = 64  # Limits the time for a malicious file.
_APP1, _START_OF_SCAN = 0xFFE1, 0xFFDA  # https://www.w3.org/Graphics/JPEG/itu-t81.pdf, table B.1
_EXIF, _PNG_EXIF, _PNG_PIXELS = (int.from_bytes(name) for name in (b"Exif", b"eXIf", b"IDAT"))
_LITTLE_ENDIAN = ord("I")
_ORIENTATION = 0x0112
_SHORT = 3  # Type of a 16-bit number.
_ENTRY_BYTES = 12


def read_orientation(encoded: Any) -> Any:
    """Return the EXIF orientation of an image file, a scalar int64 from 1 (upright) to 8.

    The result is 1 for files without an EXIF orientation, for formats other than JPEG and PNG, and for damaged
    metadata. An orientation that is stored elsewhere, such as in XMP, is not read.

    The metadata of a JPEG file are segments: a marker, the length, and the content. Those of a PNG file are chunks: the
    length, the name, the content, and a checksum. EXIF data have the format of a TIFF file. The orientation is an entry
    in its first directory.

    Args:
        encoded: A scalar string tensor with the bytes of the file.
    """
    head = tf.cast(tf.io.decode_raw(tf.strings.substr(encoded, 0, _HEAD_BYTES), tf.uint8), tf.int64)
    end = tf.size(head, tf.int64)
    head = tf.concat([head, [0]], axis=0)
    is_jpeg = tf.io.is_jpeg(encoded)

    def number(at: Any, num_bytes: int, is_little_endian: Any = False) -> Any:
        """Return the unsigned number in `num_bytes` bytes of the file, from the byte offset `at` on.

        If `at` has several offsets, return the number at each of them. Bytes after the end of the file count as 0.
        """
        read = [tf.gather(head, tf.minimum(at + i, end)) for i in range(num_bytes)]
        big = sum(byte * 256**i for i, byte in enumerate(reversed(read)))
        little = sum(byte * 256**i for i, byte in enumerate(read))
        return tf.where(is_little_endian, little, big)

    def has_exif(at: Any) -> Any:
        in_segment = (number(at, 2) == _APP1) & (number(at + 4, 4) == _EXIF)
        return tf.where(is_jpeg, in_segment, number(at + 4, 4) == _PNG_EXIF)

    def is_other_part(at: Any) -> Any:
        is_segment = (number(at, 1) == 0xFF) & (number(at, 2) != _START_OF_SCAN)
        return ~has_exif(at) & (at < end) & tf.where(is_jpeg, is_segment, number(at + 4, 4) != _PNG_PIXELS)

    def following(at: Any) -> Any:
        return tf.where(is_jpeg, at + 2 + number(at + 2, 2), at + 12 + number(at, 4))

    first = tf.where(is_jpeg, tf.constant(2, tf.int64), 8)  # After the signature of the format.
    (part,) = tf.while_loop(is_other_part, lambda at: [following(at)], [first], maximum_iterations=_MOST_PARTS)
    # After marker, length and `Exif\0\0`; in a PNG file, after length and name.
    tiff = part + tf.where(is_jpeg, tf.constant(10, tf.int64), 8)
    is_little = number(tiff, 1) == _LITTLE_ENDIAN
    directory = tiff + number(tiff + 4, 4, is_little)
    num_entries = tf.where(has_exif(part), number(directory, 2, is_little), 0)
    entries = directory + 2 + _ENTRY_BYTES * tf.range(num_entries)
    is_wanted = (number(entries, 2, is_little) == _ORIENTATION) & (number(entries + 2, 2, is_little) == _SHORT)
    values = tf.boolean_mask(number(entries + 8, 2, is_little), is_wanted)
    orientation = tf.concat([values, [1]], axis=0)[0]
    return tf.where((orientation >= 1) & (orientation <= 8), orientation, 1)


def turn(pixels: Any, orientation: Any) -> Any:
    """Rotate or mirror pixels, uint8[height, width, channels], as `images` does for an orientation from 1 to 8."""

    def is_in(*orientations: int) -> Any:
        return tf.reduce_any(orientation == tf.constant(orientations, tf.int64))

    turned = tf.cond(orientation >= 5, lambda: tf.transpose(pixels, (1, 0, 2)), lambda: pixels)
    is_reversed = tf.stack([is_in(3, 4, 7, 8), is_in(2, 3, 6, 7)])
    return tf.reverse(turned, tf.boolean_mask(tf.constant([0, 1]), is_reversed))
