"""griffe's extension for the pages of docs/api: reads our docstrings, whose form CONTRIBUTING.md describes.

A line `name: meaning` is a parameter, or an attribute of the class. An indented block is Python. The help of a setting is the
description of its field.
"""

import dataclasses
import pydoc
import re

import griffe

ITEM = re.compile(r"([a-z]\w*(?:, \w+)*): (.*)")


def escape(text: str) -> str:
    """Text that Markdown would take for HTML, outside of code."""
    return re.sub(r"(`[^`]*`)|<", lambda found: found[1] or "&lt;", text)


def to_google(text: str, parameters: set[str]) -> str:
    """A docstring with Google's titles `Args:` and `Attributes:` over its items, and fences around its code."""
    lines: list[str] = []
    title = ""  # of the section of the line before; "code" in a block
    for line in [*escape(text).splitlines(), ""]:
        before, item = title, ITEM.match(line)
        if item:
            names = item[1].split(", ")
            title = "Args:" if {*names} <= parameters else "Attributes:"
        elif not line.startswith("    "):
            title = ""
        elif not title and not (lines and lines[-1]):
            title = "code"
        if title != before:
            lines += ["```", ""] if before == "code" else [""]
            lines += ["```python"] if title == "code" else [title] if title else []
        if item:
            lines += [f"    {name}: {item[2]}" for name in names]
        else:
            lines.append(line[4:] if title == "code" else f"    {line}" if title else line)
    return "\n".join(lines)


def settings_of(cls: griffe.Class) -> dict[str, dataclasses.Field]:
    """The fields of a class of settings by name."""
    if not any(str(parameter.default).startswith(("setting(", "like(")) for parameter in cls.parameters):
        return {}
    fields = dataclasses.fields(pydoc.locate(cls.path))
    return {field.name: field for field in fields if "help" in field.metadata}


class Docstrings(griffe.Extension):
    """Rewrites the docstrings and the defaults of functions and classes."""

    def on_object(self, *, obj: griffe.Object, **_) -> None:
        if not (obj.is_function or obj.is_class) or obj.docstring is None:
            return
        settings = settings_of(obj) if obj.is_class else {}
        for parameter in obj.parameters:
            path = getattr(parameter.default, "canonical_path", "")
            if parameter.name in settings:
                default = settings[parameter.name].default
                parameter.default = None if default is dataclasses.MISSING else repr(default)
            elif path.startswith("bert_keras.tasks.options."):
                parameter.default = repr(pydoc.locate(path))
        text = to_google(obj.docstring.value, {parameter.name.strip("*") for parameter in obj.parameters})
        rows = [f"    {name}: {escape(field.metadata['help'])}" for name, field in settings.items()]
        obj.docstring.value = "\n".join([text, "", "Args:", *rows]) if rows else text
