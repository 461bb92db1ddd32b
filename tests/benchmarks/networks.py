"""Networks whose step time on a TPU has been published, as far as Keras has them not ready.

They are there to be compiled: a stack of equal blocks is compiled at two small depths, and a block's time is the
difference. Arithmetic and shapes are the originals'; what takes no time, as positions rotated or a second loss, is not.
"""

import keras
from keras import layers, ops


def build_bert(vocabulary_size, num_tokens, num_classes, depth=24, width=1024, heads=16, predicted=76):
    """BERT (https://arxiv.org/abs/1810.04805), which predicts `predicted` words of each text."""
    tokens = keras.Input((num_tokens,), dtype="int32")
    x = layers.Embedding(vocabulary_size, width)(tokens) + layers.Embedding(num_tokens, width)(ops.arange(num_tokens))
    x = layers.Dropout(0.1)(layers.LayerNormalization()(x))
    for _ in range(depth):
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(_attention(x, width, heads, dropout=0.1)))
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(_perceptron(x, width)))
    x = layers.LayerNormalization()(layers.Dense(width, activation="gelu")(x[:, :predicted]))
    words = layers.Dense(num_classes, activation="softmax", dtype="float32")(x)
    return keras.Model(tokens, layers.GlobalAveragePooling1D(dtype="float32")(words))


def build_vit(image_shape, num_classes, depth=24, width=1024, heads=16, hidden=4096, patch=16):
    """The vision transformer (https://arxiv.org/abs/2010.11929)."""
    pixels = keras.Input(image_shape, dtype="uint8")
    x = layers.Conv2D(width, patch, patch)(layers.Rescaling(1 / 127.5, -1)(pixels))
    x = layers.Reshape((-1, width))(x)
    x = x + layers.Embedding(x.shape[1], width)(ops.arange(x.shape[1]))
    for _ in range(depth):
        x = x + _attention(layers.LayerNormalization()(x), width, heads)
        x = x + _perceptron(layers.LayerNormalization()(x), width, hidden)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(pixels, layers.Dense(num_classes, activation="softmax", dtype="float32")(x))


def build_resnet_rs(image_shape, num_classes, depth=50):
    """ResNet-RS (https://arxiv.org/abs/2103.07579)."""
    pixels = keras.Input(image_shape, dtype="uint8")
    network = getattr(keras.applications, f"ResNetRS{depth}")
    x = network(weights=None, input_shape=image_shape, classes=num_classes, include_preprocessing=False)(
        layers.Rescaling(1 / 255)(pixels)
    )
    return keras.Model(pixels, layers.Activation("linear", dtype="float32")(x))


def build_decoder(vocabulary_size, num_tokens, num_classes, width=4096, hidden=14336):
    """The gated units of a decoder's block, as Llama's (https://arxiv.org/abs/2407.21783).

    They are most of its arithmetic; attention is left out, since those who publish keep it on the chip by a kernel.
    """
    tokens = keras.Input((num_tokens,), dtype="int32")
    x = layers.Embedding(vocabulary_size, width)(tokens)
    y = layers.LayerNormalization(rms_scaling=True)(x)
    gated = layers.Dense(hidden, "silu", use_bias=False)(y) * layers.Dense(hidden, use_bias=False)(y)
    x = layers.GlobalAveragePooling1D()(x + layers.Dense(width, use_bias=False)(gated))
    return keras.Model(tokens, layers.Dense(num_classes, activation="softmax", dtype="float32")(x))


def _attention(x, width, heads, dropout=0.0):
    return layers.MultiHeadAttention(heads, width // heads, dropout=dropout)(x, x)


def _perceptron(x, width, hidden=None):
    return layers.Dense(width)(layers.Dense(hidden or 4 * width, activation="gelu")(x))
