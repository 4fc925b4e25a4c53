"""Train translators from parallel text, and use them.

>>> import nmt
>>> nmt.load("runs/tiny").translate(["hello world"])
['你好世界']
"""

from nmt.decoding.translator import Translator, load
from nmt.version import __version__

__all__ = ["Translator", "__version__", "load"]
