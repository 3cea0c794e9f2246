# SPDX-License-Identifier: Apache-2.0
"""Fast and level mixture-of-experts layers over many ranks.

`trimtab.transformers` runs the experts of Hugging Face models. Mistakes of the caller and bad files are ValueErrors
(`FormatError`), all else that fails is a RuntimeError (`CommError`: a rank), with the text of the C++ library.
"""

from ._core import CommError, FormatError
from ._core import version as __version__

__all__ = ["CommError", "FormatError", "__version__"]
