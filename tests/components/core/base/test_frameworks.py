import os
import subprocess
import sys


def test_keras_is_imported_without_its_companions_and_these_can_be_imported_later():
    """They take half of the time of the import, and preflight's child needs none of them."""
    code = (
        "import sys\n"
        "from tpu_components.core.base.frameworks import import_keras_alone\n"
        "import_keras_alone()\n"
        "print('keras' in sys.modules, {'matplotlib', 'pandas', 'sklearn', 'tensorflow'} & sys.modules.keys())\n"
        "import pandas\n"
        "print(pandas.DataFrame({'a': [1]}).shape)\n"
    )
    environment = os.environ | {"KERAS_BACKEND": "jax"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "True set()\n(1, 1)\n"
