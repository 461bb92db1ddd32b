"""From a model's name to a Keras model: registered, of the user's own code, or trained before."""
