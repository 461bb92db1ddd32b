"""A recurrent network that classifies texts, for example film reviews by their sentiment."""

from typing import Any


def build_model(
    vocabulary_size: int,
    num_tokens: int,
    num_classes: int,
    embedding: int = 32,
    units: int = 32,
    embedding_dropout: float = 0.3,
    dropout: float = 0.5,
    unroll: bool = False,
) -> Any:
    """Build an LSTM classifier: 496,705 parameters for 15,000 words and 2 classes.

    It consists of an embedding, a bidirectional LSTM, a maximum over time, and a sigmoid or softmax.

    The maximum over time (https://arxiv.org/abs/1705.02364) keeps the signal of a strong word at any position. Without
    the maximum, the LSTM's state would have to keep this signal for up to 320 steps. Padding is not masked, because a
    loop without a mask is faster on every backend, on LiteRT and on the TPU.

    `tpu-pipelines run imdb_lstm` trains the classifier. pipelines/tpu_pipelines/configs/imdb_lstm.yaml states the time
    and the accuracy.

    Args:
        vocabulary_size: Number of token IDs; the input is int32[batch, num_tokens].
        num_tokens: Tokens of a text.
        num_classes: Number of classes; the output is float32[batch, num_classes] probabilities, from a sigmoid for two
            classes, otherwise from a softmax.
        embedding: Width of a token's vector.
        units: Width of the LSTM in each direction.
        embedding_dropout: Dropout rate of the embedding's features. All tokens of a text lose the same features.
        dropout: Dropout rate after the maximum.
        unroll: Unroll the loop, which is twice as fast on a CPU, but takes half a minute to compile.
    """
    import keras
    from keras import layers

    tokens = keras.Input((num_tokens,), dtype="int32")
    x = layers.Embedding(vocabulary_size, embedding)(tokens)
    x = layers.SpatialDropout1D(embedding_dropout)(x)
    x = layers.Bidirectional(layers.LSTM(units, return_sequences=True, unroll=unroll))(x)
    x = layers.GlobalMaxPooling1D()(x)
    x = layers.Dropout(dropout)(x)
    if num_classes == 2:
        second = layers.Dense(1, activation="sigmoid", dtype="float32")(x)
        first = layers.Rescaling(-1.0, 1.0, dtype="float32")(second)
        answer = layers.Concatenate(dtype="float32")([first, second])
    else:
        answer = layers.Dense(num_classes, activation="softmax", dtype="float32")(x)
    return keras.Model(tokens, answer, name="imdb_lstm")
