"""Faults in C++, found in tree-sitter's syntax tree: operators, constants, conditions, calls, arguments.

What does not compile is no mutant and what compiles to the same code is an equal one: that is found out by building.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterator

import tree_sitter_cpp
from tree_sitter import Language, Node, Parser

from mutation.sites import Fault, Place, key_of

PARSER = Parser(Language(tree_sitter_cpp.language()))

OPERATORS = {
    "<": ("<=", ">"),
    "<=": ("<", ">="),
    ">": (">=", "<"),
    ">=": (">", "<="),
    "==": ("!=",),
    "!=": ("==",),
    "&&": ("||",),
    "||": ("&&",),
    "+": ("-",),
    "-": ("+",),
    "*": ("+", "/"),
    "/": ("*",),
    "%": ("/", "*"),
    "<<": (">>",),
    ">>": ("<<",),
    "&": ("|",),
    "|": ("&",),
    "^": ("|",),
    "+=": ("-=",),
    "-=": ("+=",),
    "*=": ("+=",),
    "/=": ("*=",),
    "|=": ("&=",),
    "&=": ("|=",),
    "^=": ("|=",),
    "<<=": (">>=",),
    ">>=": ("<<=",),
}
PAIRS = [("min", "max"), ("any_of", "all_of"), ("all_of", "none_of"), ("floor", "ceil"), ("true", "false")]
PAIRS += [("lower_bound", "upper_bound"), ("min_element", "max_element")]
SWAPPED = {a: b for x, y in PAIRS for a, b in ((y, x), (x, y))}
NO_SITES = {"static_assert_declaration", "preproc_include", "preproc_def", "preproc_function_def", "string_literal"}
NO_SITES |= {"comment", "raw_string_literal", "attribute_specifier", "alignas_qualifier", "preproc_if", "preproc_ifdef"}
HEADER_GUARDS = {"preproc_if", "preproc_ifdef"}  # only their conditions are no places
COMMUTATIVE = re.compile(rb"(^|::|\()(min|max|add|mul|and|or|xor)(_?e?pi?[usi]?\d+|\d*|_si\d+|_p[sd])\)?$")
NUMBER = re.compile(rb"(0[xXbB][0-9a-fA-F']+|[0-9']+)([uUlLzZ]*)$")


def find(path: str, source: str) -> list[Place]:
    text = source.encode()
    lines = source.splitlines(keepends=True)
    faults: dict[tuple[int, int], list[Fault]] = defaultdict(list)
    where: dict[tuple[int, int], Node] = {}
    for node in walk(PARSER.parse(text).root_node):
        for kind, start, end, new in faults_of(node):
            changed = functools.partial(replaced, text, start, end, new)
            faults[start, end].append(Fault(kind, changed))
            where.setdefault((start, end), node)
    places = []
    for (start, end), there in sorted(faults.items()):
        line = text.count(b"\n", 0, start)
        column = start - (text.rfind(b"\n", 0, start) + 1)
        key = key_of(lines, line, (column, column + end - start))
        places.append(Place(path, key, (line + 1, text.count(b"\n", 0, end) + 1), tuple(there)))
    return places


def replaced(text: bytes, start: int, end: int, new: bytes) -> str:
    return (text[:start] + new + text[end:]).decode()


def walk(node: Node) -> Iterator[Node]:
    if node.type in NO_SITES - HEADER_GUARDS:
        return
    if node.type in ("expression_statement", "call_expression") and node.text.startswith(b"assert("):
        return
    yield node
    condition = node.child_by_field_name("condition") if node.type in HEADER_GUARDS else None
    for child in node.children:
        if condition is None or child != condition:
            yield from walk(child)


def faults_of(node: Node) -> Iterator[tuple[str, int, int, bytes]]:
    """(kind, first byte, byte behind the last, new text)."""
    if node.type in ("binary_expression", "assignment_expression"):
        operator = node.child_by_field_name("operator")
        for other in OPERATORS.get(operator.text.decode(), ()) if operator else ():
            yield "operator", operator.start_byte, operator.end_byte, other.encode()
    elif node.type == "update_expression":
        operator = node.child_by_field_name("operator")
        other = b"--" if operator.text == b"++" else b"++"
        yield "operator", operator.start_byte, operator.end_byte, other
    elif node.type == "unary_expression":
        operator = node.child_by_field_name("operator")
        if operator.text in (b"!", b"-", b"~"):
            yield "remove_unary", operator.start_byte, operator.end_byte, b" "
    elif node.type == "number_literal":
        yield from number_faults(node)
    elif node.type in ("identifier", "true", "false") and node.text.decode() in SWAPPED:
        yield "swap_name", node.start_byte, node.end_byte, SWAPPED[node.text.decode()].encode()
    elif node.type in ("if_statement", "while_statement", "conditional_expression"):
        condition = node.child_by_field_name("condition")
        inner = condition.child_by_field_name("value") if condition.type == "condition_clause" else condition
        if inner is not None and b"constexpr" not in node.text[: max(0, condition.start_byte - node.start_byte)]:
            yield "negate", inner.start_byte, inner.end_byte, b"!(" + inner.text + b")"
    elif node.type == "expression_statement" and node.child_count > 1:
        if node.children[0].type in ("call_expression", "assignment_expression", "update_expression"):
            yield "remove_statement", node.start_byte, node.end_byte, b";"
    elif node.type == "break_statement" and inside_loop(node):
        yield "jump", node.start_byte, node.end_byte, b"continue;"
    elif node.type == "continue_statement":
        yield "jump", node.start_byte, node.end_byte, b"break;"
    elif node.type == "argument_list" and not commutes(node):  # one place, whatever its length
        operands = [child for child in node.named_children if child.type != "comment"]
        for a, b in zip(operands, operands[1:]):
            if a.text != b.text and "string" not in a.type + b.type:
                at = [n - node.start_byte for n in (a.start_byte, a.end_byte, b.start_byte, b.end_byte)]
                text = node.text
                new = text[: at[0]] + b.text + text[at[1] : at[2]] + a.text + text[at[3] :]
                yield "swap_arguments", node.start_byte, node.end_byte, new


def commutes(arguments: Node) -> bool:
    """Whether the function called is one that does not mind: min, max, and additions and the like of vectors."""
    function = arguments.parent.child_by_field_name("function") if arguments.parent is not None else None
    return function is not None and COMMUTATIVE.search(function.text) is not None


def inside_loop(node: Node) -> bool:
    while node.parent is not None and node.type not in ("switch_statement", "function_definition"):
        node = node.parent
        if node.type in ("for_statement", "while_statement", "for_range_loop", "do_statement"):
            return True
    return False


def number_faults(node: Node) -> Iterator[tuple[str, int, int, bytes]]:
    matched = NUMBER.match(node.text)
    if matched:
        value = int(matched[1].replace(b"'", b""), 0)
        for other in (value + 1, value - 1):
            yield "constant", node.start_byte, node.end_byte, str(other).encode() + matched[2]
    elif re.match(rb"[0-9.]+(e[+-]?[0-9]+)?f?$", node.text):
        suffix = b"f" if node.text.endswith(b"f") else b""
        value = float(node.text.rstrip(b"f"))
        for changed in (value + 1, value - 1):
            yield "constant", node.start_byte, node.end_byte, repr(changed).encode() + suffix
