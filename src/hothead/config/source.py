"""Where values come from: defaults, then a configuration file, then the command line. The later one wins, and is the origin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hothead.config.option import COMMAND_LINE, Options, check_keys, options_of
from hothead.errors import OptionError

if TYPE_CHECKING:
    import yaml

C = TypeVar("C", bound=Options)

MAX_FILE_BYTES = 1 << 20


class Sources:
    """Values of one configuration file and of the command line, from which several configuration records are filled.

    file_values and flag_values: field name -> value; a flag that was not given must not be in flag_values.
    Raises OptionError for a key of the file that none of `classes` knows.
    """

    def __init__(self, classes: tuple[type[Options], ...], flag_values: Mapping[str, Any], file: Path | None = None) -> None:
        self._file_values = {} if file is None else read_yaml(file)
        self._file_name = str(file)
        self._flag_values = flag_values
        check_keys(self._file_values, classes, self._file_name)
        check_keys(flag_values, classes, COMMAND_LINE)

    def fill(self, cls: type[C]) -> C:
        """A record of one of the classes. Raises OptionError for a value that does not fit, naming where it came from."""
        known = {item.name for item in options_of(cls)}
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        for origin, layer in ((self._file_name, self._file_values), (COMMAND_LINE, self._flag_values)):
            for name in known & layer.keys():
                values[name], origins[name] = layer[name], origin
        return cls(**values, origins=origins)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds; {} for an empty one. Raises OptionError where there is none, with the line of a syntax error."""
    import yaml

    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise OptionError(f"{path} is no configuration file: {path.stat().st_size} bytes, at most {MAX_FILE_BYTES} are read.")
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_strict_loader())
    except OSError as error:
        raise OptionError(f"Cannot read the configuration file {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"{path} is no configuration file: it is not UTF-8 text (byte {error.start}).") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise OptionError(f"{path}{where} is not valid YAML: {error.problem}.") from error
    except yaml.YAMLError as error:
        raise OptionError(f"{path} is not valid YAML: {error}.") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise OptionError(f"{path} must hold 'key: value' lines, but holds a {type(values).__name__}.", advice="Example: tp_size: 2")
    return {str(key): value for key, value in values.items()}


def _strict_loader() -> type[yaml.SafeLoader]:
    """PyYAML's safe loader, which takes the last of two equal keys; here the second one is an error."""
    import yaml

    class StrictLoader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key_node, _ in node.value:
                if not isinstance(key_node, yaml.ScalarNode):
                    continue
                if key_node.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"key '{key_node.value}' is there twice", key_node.start_mark)
                seen.add(key_node.value)
            return super().construct_mapping(node, deep)

    return StrictLoader
