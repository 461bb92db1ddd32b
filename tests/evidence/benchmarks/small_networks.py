"""Small networks of many kinds for `tests.evidence.benchmarks.batches`, which finds the largest batch of each."""

import keras
from keras import layers


def build_model(name, num_classes, **facts):
    """Return the network with this name. Its input is an image or token IDs."""
    if name in _OF_IMAGES:
        inputs = keras.Input(facts["image_shape"], dtype="uint8")
        x = _OF_IMAGES[name](layers.Rescaling(1 / 255)(inputs))
    else:
        inputs = keras.Input((facts["num_tokens"],), dtype="int32")
        x = _OF_TEXTS[name](layers.Embedding(facts["vocabulary_size"], 128)(inputs))
    return keras.Model(inputs, layers.Dense(num_classes, activation="softmax", dtype="float32")(x))


def _strided(x):
    for filters in (32, 64, 128, 128):
        x = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(x)
    return layers.GlobalAveragePooling2D()(x)


def _pooled(x):
    for filters in (32, 64, 128):
        x = layers.MaxPooling2D()(layers.Conv2D(filters, 3, padding="same", activation="relu")(x))
    return layers.Dropout(0.3)(layers.GlobalAveragePooling2D()(x))


def _separable(x):
    x = layers.Conv2D(32, 3, strides=2, padding="same", use_bias=False)(x)
    for filters in (64, 128, 256):
        x = layers.SeparableConv2D(filters, 3, padding="same", use_bias=False)(layers.ReLU(6)(x))
        x = layers.MaxPooling2D()(layers.BatchNormalization()(x))
    return layers.GlobalAveragePooling2D()(x)


def _residual(x):
    x = layers.Conv2D(64, 7, strides=2, padding="same")(x)
    for _ in range(3):
        y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(64, 3, padding="same", use_bias=False)(x)))
        y = layers.BatchNormalization()(layers.Conv2D(64, 3, padding="same", use_bias=False)(y))
        x = layers.ReLU()(layers.add([x, y]))
    return layers.GlobalAveragePooling2D()(x)


def _dense_block(x):
    x = layers.Conv2D(32, 3, strides=2, padding="same")(x)
    for _ in range(4):
        y = layers.Conv2D(32, 3, padding="same")(layers.ReLU()(layers.BatchNormalization()(x)))
        x = layers.concatenate([x, y])
    return layers.GlobalMaxPooling2D()(x)


def _unet(x):
    kept = []
    for filters in (16, 32, 64):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        kept.append(x)
        x = layers.MaxPooling2D()(x)
    for filters, skip in zip((64, 32, 16), reversed(kept), strict=True):
        x = layers.concatenate([layers.UpSampling2D()(x), skip])
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    return layers.GlobalAveragePooling2D()(x)


def _encoder(x):
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = layers.add([x, layers.MultiHeadAttention(4, 32)(y, y)])
        y = layers.Dense(512, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.add([x, layers.Dense(128)(y)])
    return layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))


def _lstm(x):
    return layers.LSTM(256)(layers.LSTM(256, return_sequences=True)(x))


def _text_convolution(x):
    for filters in (128, 256):
        x = layers.MaxPooling1D()(layers.Conv1D(filters, 5, padding="same", activation="relu")(x))
    return layers.GlobalMaxPooling1D()(x)


_OF_IMAGES = {
    "strided": _strided,
    "pooled": _pooled,
    "separable": _separable,
    "residual": _residual,
    "dense block": _dense_block,
    "u-net": _unet,
}
_OF_TEXTS = {"encoder": _encoder, "lstm": _lstm, "convolution": _text_convolution}
