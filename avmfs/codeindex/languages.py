"""The languages of the index of code: which files are of one, and what in its grammar is a symbol or a call.

Owns the table; a further language is an entry. Called by ``parsing``. The grammars are tree-sitter's own packages,
which bring them built: the language pack fetches its grammars from the network when they are first used. Patterns are
tree-sitter queries: a capture other than ``@name`` and ``@of`` is the kind of a symbol, ``@impl`` a place that has
symbols and is none, ``@of`` what a symbol belongs to where it stands elsewhere. Of two that match one name the first
counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Language:
    """``package`` and ``grammar``: the module, and its function that gives the grammar. ``calls``: a query whose
    ``@call`` is the name, or ends with it, of what is called."""

    name: str
    package: str
    suffixes: tuple[str, ...]
    symbols: str
    calls: str
    grammar: str = "language"


_JAVASCRIPT: Final = """
(function_declaration name: (_) @name) @function
(generator_function_declaration name: (_) @name) @function
(class_declaration name: (_) @name) @class
(method_definition name: (_) @name) @method
(variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression) (generator_function)])
  @function
(variable_declarator name: (identifier) @name value: (class)) @class
(assignment_expression left: (member_expression object: (_) @of property: (_) @name)
  right: [(arrow_function) (function_expression) (generator_function)]) @function
(assignment_expression left: (identifier) @name right: [(arrow_function) (function_expression)]) @function
(pair key: (_) @name value: [(arrow_function) (function_expression) (generator_function)]) @method
(program [(lexical_declaration (variable_declarator name: (identifier) @name) @constant)
          (variable_declaration (variable_declarator name: (identifier) @name) @constant)
          (export_statement (lexical_declaration (variable_declarator name: (identifier) @name) @constant))])
"""
_JAVASCRIPT_CALLS: Final = "(call_expression function: (_) @call) (new_expression constructor: (_) @call)"
_TYPESCRIPT: Final = (
    _JAVASCRIPT
    + """
(abstract_class_declaration name: (_) @name) @class
(interface_declaration name: (_) @name) @interface
(type_alias_declaration name: (_) @name) @type
(enum_declaration name: (_) @name) @enum
(internal_module name: (_) @name) @namespace
(function_signature name: (_) @name) @function
(method_signature name: (_) @name) @method
(abstract_method_signature name: (_) @name) @method
(public_field_definition name: (_) @name value: [(arrow_function) (function_expression)]) @method
"""
)
_C: Final = """
(function_definition declarator: (_) @name) @function
(struct_specifier name: (_) @name body: (_)) @struct
(union_specifier name: (_) @name body: (_)) @union
(enum_specifier name: (_) @name body: (_)) @enum
(type_definition declarator: (_) @name) @type
(preproc_def name: (_) @name) @macro
(preproc_function_def name: (_) @name) @macro
(declaration declarator: (function_declarator) @name) @prototype
(declaration declarator: (pointer_declarator declarator: (function_declarator) @name)) @prototype
"""
_C_CALLS: Final = "(call_expression function: (_) @call)"

_LANGUAGES: Final = (
    Language(
        "python",
        "tree_sitter_python",
        (".py", ".pyi", ".pyw"),
        """
(function_definition name: (_) @name) @function
(class_definition name: (_) @name) @class
(module (expression_statement (assignment left: (identifier) @name) @constant))
(class_definition body: (block (expression_statement (assignment left: (identifier) @name) @constant)))
""",
        "(call function: (_) @call)",
    ),
    Language(
        "javascript",
        "tree_sitter_javascript",
        (".js", ".mjs", ".cjs", ".jsx"),
        _JAVASCRIPT + "(field_definition property: (_) @name value: [(arrow_function) (function_expression)]) @method",
        _JAVASCRIPT_CALLS,
    ),
    Language(
        "typescript",
        "tree_sitter_typescript",
        (".ts", ".mts", ".cts"),
        _TYPESCRIPT,
        _JAVASCRIPT_CALLS,
        "language_typescript",
    ),
    Language("tsx", "tree_sitter_typescript", (".tsx",), _TYPESCRIPT, _JAVASCRIPT_CALLS, "language_tsx"),
    Language(
        "go",
        "tree_sitter_go",
        (".go",),
        """
(function_declaration name: (_) @name) @function
(method_declaration receiver: (_) @of name: (_) @name) @method
(type_spec name: (_) @name type: (struct_type)) @struct
(type_spec name: (_) @name type: (interface_type)) @interface
(type_spec name: (_) @name) @type
(type_alias name: (_) @name) @type
(method_elem name: (_) @name) @method
(source_file (const_declaration (const_spec name: (_) @name) @constant))
(source_file (var_declaration [(var_spec name: (_) @name) @variable
                               (var_spec_list (var_spec name: (_) @name) @variable)]))
""",
        "(call_expression function: (_) @call)",
    ),
    Language(
        "rust",
        "tree_sitter_rust",
        (".rs",),
        """
(function_item name: (_) @name) @function
(function_signature_item name: (_) @name) @method
(struct_item name: (_) @name) @struct
(enum_item name: (_) @name) @enum
(union_item name: (_) @name) @union
(trait_item name: (_) @name) @trait
(type_item name: (_) @name) @type
(const_item name: (_) @name) @constant
(static_item name: (_) @name) @variable
(mod_item name: (_) @name body: (_)) @module
(macro_definition name: (_) @name) @macro
(impl_item type: (_) @name) @impl
""",
        "(call_expression function: (_) @call) (macro_invocation macro: (_) @call)",
    ),
    Language(
        "java",
        "tree_sitter_java",
        (".java",),
        """
(class_declaration name: (_) @name) @class
(interface_declaration name: (_) @name) @interface
(enum_declaration name: (_) @name) @enum
(record_declaration name: (_) @name) @class
(annotation_type_declaration name: (_) @name) @interface
(method_declaration name: (_) @name) @method
(constructor_declaration name: (_) @name) @method
(field_declaration (modifiers "static" "final") declarator: (variable_declarator name: (_) @name)) @constant
""",
        "(method_invocation name: (_) @call) (object_creation_expression type: (_) @call)",
    ),
    Language("c", "tree_sitter_c", (".c",), _C, _C_CALLS),
    Language(
        "c++",
        "tree_sitter_cpp",
        (".cc", ".cpp", ".cxx", ".c++", ".h", ".hh", ".hpp", ".hxx", ".inl"),  # a header may be of either
        _C
        + """
(class_specifier name: (_) @name body: (_)) @class
(namespace_definition name: (_) @name) @namespace
(alias_declaration name: (_) @name) @type
(concept_definition name: (_) @name) @type
(field_declaration declarator: (function_declarator) @name) @method
(field_declaration declarator: (pointer_declarator declarator: (function_declarator) @name)) @method
(field_declaration declarator: (reference_declarator (function_declarator) @name)) @method
""",
        _C_CALLS + " (new_expression type: (_) @call)",
    ),
)

BY_SUFFIX: Final[Mapping[str, Language]] = {suffix: each for each in _LANGUAGES for suffix in each.suffixes}
CONTAINERS: Final = frozenset(("class", "struct", "interface", "trait", "enum", "union", "impl"))
"""What makes a function in it a method."""
