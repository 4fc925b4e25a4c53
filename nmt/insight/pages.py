"""Self-contained pages: one HTML file with its styles, scripts and data, which requests nothing from anywhere."""

import base64
import gzip
from functools import cache
from importlib.resources import files

import yaml
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from nmt.version import __version__

_STATIC = files("nmt.insight") / "static"


def render(template: str, title: str, **values: object) -> str:
    """Render a template of nmt/insight/static/ with these values; all text in them is escaped.

    A template extends base.html, which has the blocks `style`, `content` and `script`.
    """
    return _environment().get_template(template).render(title=title, version=__version__, **values)


def packed(data: bytes) -> str:
    """Gzip and base64 for a page's `unpack` (common.js): binary data takes a fraction of JSON's size."""
    return base64.b64encode(gzip.compress(data, mtime=0)).decode()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_read), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["include_static"] = lambda name: Markup(_read(name))
    environment.globals["glossary"] = yaml.safe_load(_read("glossary.yaml"))  # for help.html
    return environment


def _read(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")
