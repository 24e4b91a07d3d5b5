"""Image folders give datasets with the same classes as Keras's own function."""

import keras
import numpy as np
import pytest
from headrace.errors import InputError
from headrace.tensorflow.io import image_folders


@pytest.fixture
def images(tmp_path):
    for name in (".ipynb_checkpoints", "cat", "dog"):
        (tmp_path / name).mkdir()
        keras.utils.save_img(tmp_path / name / "1.png", np.full((4, 4, 3), len(name)))
    return tmp_path


def test_a_hidden_folder_is_no_class(images):
    (_, ours), *_ = image_folders.from_folders(images, shuffle=False)
    (_, keras_own), *_ = keras.utils.image_dataset_from_directory(images, shuffle=False, verbose=False)
    assert ours.numpy().tolist() == keras_own.numpy().tolist() == [0, 1]


def test_a_class_without_a_folder_is_refused(images):
    with pytest.raises(InputError, match=r"class_names has .dgo., and .* has no such folder"):
        image_folders.from_folders(images, class_names=["cat", "dgo"])
