"""Bodies that are images: decoded by Pillow, refused where they are none or too large.

image_of(body).size
"""

from __future__ import annotations

import io
import warnings

from PIL import Image
from service import Refused

_MOST_PIXELS = 50_000_000


def image_of(body: bytes) -> Image.Image:
    """An image in RGB. Raises Refused."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            file = Image.open(io.BytesIO(body))
            if file.width * file.height > _MOST_PIXELS:
                raise Refused(413, f"an image has at most {_MOST_PIXELS} pixels")
            return file.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise Refused(400, "the body is no image") from None
