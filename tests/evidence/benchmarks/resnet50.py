"""ResNet-50 as keras.applications has it, and with what the MLPerf submissions to TPU v2 and v3 changed.

`model: tests/evidence/benchmarks/resnet50.py` with `parameters: {tuned: true}` shows what preflight's advice is worth.
The plain network loses time in three places that the report names: the stem (3 input features of 128), batch
normalisation in float32 that reads its input twice, and biases whose gradients are summed beside batch normalisation's
own. It is there to be compiled: its batch normalisation is a layer of its own, from which train_model could not rebuild
it.
"""

import keras
from keras import layers, ops


class FastBatchNormalization(layers.Layer):
    """Batch normalisation that reads its input once for both statistics, and scales in the compute dtype."""

    def __init__(self, momentum=0.9, epsilon=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.momentum, self.epsilon = momentum, epsilon

    def build(self, shape):
        def weight(name, value, trainable):
            # Statistics stay in float32, whatever the activations are computed in.
            return self.add_weight(
                shape=shape[-1:], initializer=value, trainable=trainable, autocast=False, dtype="float32", name=name
            )

        self.gamma, self.beta = weight("gamma", "ones", True), weight("beta", "zeros", True)
        self.mean, self.variance = weight("mean", "zeros", False), weight("variance", "ones", False)

    def call(self, inputs, training=False):
        mean, variance = ops.convert_to_tensor(self.mean), ops.convert_to_tensor(self.variance)
        if training:
            wide = ops.cast(inputs, "float32")
            batch_mean = ops.mean(wide, axis=(0, 1, 2))
            batch_variance = ops.mean(ops.square(wide), axis=(0, 1, 2)) - ops.square(batch_mean)
            self.mean.assign(mean * self.momentum + batch_mean * (1 - self.momentum))
            self.variance.assign(variance * self.momentum + batch_variance * (1 - self.momentum))
            mean, variance = batch_mean, batch_variance
        scale = ops.convert_to_tensor(self.gamma) * ops.rsqrt(variance + self.epsilon)
        shift = ops.convert_to_tensor(self.beta) - mean * scale
        return inputs * ops.cast(scale, inputs.dtype) + ops.cast(shift, inputs.dtype)


def build_model(image_shape, num_classes, tuned=False):
    """The network: v1.5, that is with the strides in the 3×3 convolutions, where it is tuned."""
    inputs = keras.Input(image_shape, dtype="uint8")
    x = layers.Rescaling(1 / 255)(inputs)
    if tuned:
        return keras.Model(inputs, _tuned(x, image_shape, num_classes))
    return keras.Model(
        inputs, keras.applications.ResNet50(weights=None, input_shape=image_shape, classes=num_classes)(x)
    )


def _tuned(x, image_shape, num_classes):
    height, width, channels = image_shape
    # Space to depth: blocks of 2×2 pixels become 12 features, and the 7×7 convolution of stride 2 becomes one of 4×4.
    x = layers.Reshape((height // 2, 2, width // 2, 2, channels))(x)
    x = layers.Reshape((height // 2, width // 2, 4 * channels))(layers.Permute((1, 3, 2, 4, 5))(x))
    x = layers.ZeroPadding2D(((2, 1), (2, 1)))(x)
    x = layers.Conv2D(64, 4, use_bias=False)(x)
    x = layers.ReLU()(FastBatchNormalization()(x))
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for features, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            x = _block(x, features, stride=2 if block == 0 and features > 64 else 1, project=block == 0)
    x = layers.GlobalAveragePooling2D()(x)
    return layers.Dense(num_classes, activation="softmax", dtype="float32")(x)


def _block(x, features, stride, project):
    def normalized(x, features, size, stride=1):
        return FastBatchNormalization()(layers.Conv2D(features, size, stride, "same", use_bias=False)(x))

    shortcut = normalized(x, 4 * features, 1, stride) if project else x
    y = layers.ReLU()(normalized(x, features, 1))
    y = layers.ReLU()(normalized(y, features, 3, stride))
    return layers.ReLU()(layers.Add()([normalized(y, 4 * features, 1), shortcut]))
