"""Look up AWS's training image for a framework, with AWS's own package."""

from __future__ import annotations

import re

from headrace.errors import InputError, SetupError
from headrace.frameworks import FRAMEWORKS

OLDEST_PYTHON = (3, 10)


def default_image(region: str, framework: str, version: str, instance_type: str) -> str:
    """Return the address of AWS's training image, with GPU support if `instance_type` has GPUs.

    All groups of a job use the same image, so pass the dnn group's type.

    Raises:
        InputError: AWS has no image of this version, or none in this region.
        SetupError: sagemaker-core, which holds the addresses, is not installed.
    """
    try:
        from sagemaker.core import image_uris
    except ImportError as error:
        raise SetupError(f"no sagemaker-core ({error}): pip install 'headrace[submit]', or give --image_uri") from error
    try:
        image: str = image_uris.retrieve(
            framework, region, version=version, py_version=None, instance_type=instance_type, image_scope="training"
        )
    except (ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"AWS has no {FRAMEWORKS[framework].title} {version} training image for {instance_type} in {region!r} "
            f"({reason[:200]}); check --framework_version and --region, or give --image_uri"
        ) from error
    python = re.search(r"-py(\d)(\d+)", image)
    if python and (int(python[1]), int(python[2])) < OLDEST_PYTHON:
        raise InputError(
            f"AWS's image of {FRAMEWORKS[framework].title} {version} has Python {python[1]}.{python[2]}, and headrace "
            f"needs {'.'.join(map(str, OLDEST_PYTHON))}: give a later --framework_version"
        )
    return image
