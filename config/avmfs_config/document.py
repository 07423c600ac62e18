"""A YAML file as plain data: text, numbers, booleans, None, lists and dicts with text or integer keys.

Called by the loader only. It owns what a hostile or careless file can do to a reader (size, depth, anchors,
repeated keys, tags, things that are no file) and must not know what any key means. YAML is imported inside
the functions: a program that reads no configuration does not pay for it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from avmfs_config.errors import ConfigError

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
_MAX_NUMBER = 64  # characters: int() and base-60 numbers cost the square of their length
_TAG = "tag:yaml.org,2002:"
_QUOTE = "put text that begins with * or & in quotes"
_NO_ANCHORS = f"anchors and aliases are not supported ({_QUOTE})"


def read_document(path: Path) -> object | None:
    """The data of the file at `path`, or None where there is no such file; an empty file is ``{}``.

    Raises ConfigError for everything else: unreadable, not a regular file, too large, not UTF-8, broken YAML.
    """
    try:
        # O_NONBLOCK: a fifo without a writer would hold up a reload for good
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if path.is_symlink():
            raise ConfigError(path.name, "", f"{path} is a symbolic link to nothing") from None
        return None
    except (OSError, ValueError) as problem:
        raise ConfigError(path.name, "", _unreadable(path, problem)) from None
    try:
        found = os.fstat(fd)
        # /dev/null is how people say "an empty one"
        if not stat.S_ISREG(found.st_mode) and not os.path.samestat(found, os.stat(os.devnull)):
            raise ConfigError(path.name, "", f"{path} is not a regular file")
        with open(fd, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as problem:
        raise ConfigError(path.name, "", _unreadable(path, problem)) from None
    finally:
        os.close(fd)
    return parse_document(content, path.name)


def parse_document(content: bytes, file: str) -> object:
    """The data in `content`, one YAML document; `file` is the name that errors carry."""
    import yaml

    if len(content) > MAX_BYTES:
        raise ConfigError(file, "", f"larger than {MAX_BYTES} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise ConfigError(file, "", f"not UTF-8 text (byte {problem.start})") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        # The events come first: they are a stream, where composing recurses and follows aliases.
        _check_shape(text, loader, file)
        node = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as problem:
        reason = str(problem.problem or problem.context or "broken YAML")
        if any(word in str(problem.context) for word in ("alias", "anchor")):
            reason += f" ({_QUOTE})"
        raise ConfigError(file, _at(problem.problem_mark or problem.context_mark), reason) from None
    except yaml.YAMLError as problem:  # a character that YAML forbids: no mark, only an offset
        offset = int(getattr(problem, "position", 0))
        line, column = text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
        raise ConfigError(file, f"{line}:{column}", "a character that YAML does not allow") from None
    return {} if node is None else _plain(node, "", file)


def child_key(key: str, name: object) -> str:
    """The path of the entry `name` of the mapping at `key`: ``providers[0].config``."""
    step = str(name)
    if not step.isprintable():
        step = repr(step)  # an error is one line
    return f"{key}.{step}" if key else step


def _unreadable(path: Path, problem: Exception) -> str:
    reason = problem.strerror if isinstance(problem, OSError) else str(problem)
    return f"cannot read {path}: {reason}"


def _at(mark: Any) -> str:
    """LINE:COLUMN of a mark, whichever of PyYAML's two parsers made it."""
    return "" if mark is None else f"{mark.line + 1}:{mark.column + 1}"


def _check_shape(text: str, loader: type[yaml.SafeLoader], file: str) -> None:
    """Refuse anchors, aliases and deep nesting while the text is still a stream of events."""
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if getattr(event, "anchor", None) is not None:
            raise ConfigError(file, _at(event.start_mark), _NO_ANCHORS)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise ConfigError(file, _at(event.start_mark), f"nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _plain(node: yaml.Node, key: str, file: str) -> object:
    import yaml

    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, file)
    if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
        return [_plain(item, f"{key}[{index}]", file) for index, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode) or node.tag != _TAG + "map":
        raise ConfigError(file, _at(node.start_mark), f"tag {_short(node.tag)} is not supported")
    result: dict[str | int, object] = {}
    lines: dict[str | int, int] = {}
    for name_node, value_node in node.value:
        mark = name_node.start_mark
        name = _scalar(name_node, file) if isinstance(name_node, yaml.ScalarNode) else None
        if isinstance(name, bool) or not isinstance(name, (str, int)):
            raise ConfigError(file, _at(mark), "a key must be text (put it in quotes)")
        if name in result:
            raise ConfigError(file, child_key(key, name), f"duplicate key: lines {lines[name]} and {mark.line + 1}")
        lines[name] = mark.line + 1
        result[name] = _plain(value_node, child_key(key, name), file)
    return result


def _scalar(node: yaml.ScalarNode, file: str) -> str | int | float | bool | None:
    """The value of a scalar by YAML 1.1, except that dates and base-60 numbers (``12:30``) stay text."""
    from yaml.constructor import SafeConstructor

    text: str = node.value
    kind = node.tag.removeprefix(_TAG)
    number = kind in ("int", "float")
    if number and len(text) > _MAX_NUMBER:
        raise ConfigError(file, _at(node.start_mark), "a number of more than 64 characters")
    if kind in ("str", "timestamp", "merge", "value") or (number and ":" in text):
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ConfigError(file, _at(node.start_mark), "half of a surrogate pair is not text")
        return text
    make = SafeConstructor()
    try:
        match kind:
            case "null":
                return None
            case "bool":
                return bool(make.construct_yaml_bool(node))
            case "int":
                return int(make.construct_yaml_int(node))
            case "float":
                return float(make.construct_yaml_float(node))
    except (ValueError, KeyError, IndexError):
        raise ConfigError(file, _at(node.start_mark), f"{text!r} is not a valid {kind}") from None
    raise ConfigError(file, _at(node.start_mark), f"tag {_short(node.tag)} is not supported")


def _short(tag: str) -> str:
    return tag.replace(_TAG, "!!")
