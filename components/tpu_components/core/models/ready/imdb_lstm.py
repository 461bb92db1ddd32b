"""A recurrent network for the sentiment of film reviews, and for other classes of texts."""

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
    """Build embedding, bidirectional LSTM, maximum over time, sigmoid: 496,705 parameters for 15,000 words, 2 classes.

    The maximum over time (https://arxiv.org/abs/1705.02364) keeps the signal of a strong word at any position; the last
    LSTM state would have to keep it for 320 steps. Padding needs no mask, and loops without masks are fastest on
    every backend, LiteRT and the TPU.

    `tpu-pipelines run imdb_lstm` trains it; pipelines/tpu_pipelines/configs/imdb_lstm.yaml has time and accuracy.

    Args:
        vocabulary_size: Number of token ids; the input is int32[batch, num_tokens].
        num_tokens: Tokens of a text.
        num_classes: Number of classes; the output is float32[batch, num_classes] probabilities, from a sigmoid for two
            classes, else from a softmax.
        embedding: Width of a token's vector.
        units: Width of the LSTM in each direction.
        embedding_dropout: Dropout rate of the embedding's features, equal for all tokens of a text.
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
