from tpu_components.core.sources.params import WriteParams


def test_one_number_is_the_height_and_the_width_of_an_image():
    assert WriteParams("images:pictures", image_size=(32,)).image_size == (32, 32)
