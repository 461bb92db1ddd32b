"""A recurrent network for the sentiment of film reviews, and for other texts in classes."""

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

    The maximum lets a strong word count wherever it stands, so the answer does not have to survive 320 steps; padding
    can be left unmasked, and a loop without masks is what every backend, LiteRT and the TPU run best.

    The maximum over time is that of https://arxiv.org/abs/1705.02364.
    `tpu-pipelines run imdb_lstm`; pipelines/configs/imdb_lstm.yaml says the time and the accuracy.

    Args:
        vocabulary_size: Ids are below it; int32[batch, num_tokens] goes in.
        num_tokens: Tokens of a text.
        num_classes: float32[batch, num_classes] probabilities come out: two from a sigmoid, more from a softmax.
        embedding: Width of a token's vector.
        units: Width of the LSTM in each direction.
        embedding_dropout: Share of the embedding's features that are dropped in training, in all tokens alike.
        dropout: Share of the maximum's.
        unroll: Write the loop out: twice as fast on a CPU, but half a minute of compilation, and a large program.
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
