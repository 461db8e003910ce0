"""Faults in Python: cosmic-ray's operators, of each operator those that come near the original, and a few of our own:
a statement left out, nothing returned, arguments in the wrong order, min for max.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator

import parso
from cosmic_ray.ast import ast_nodes
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from parso.tree import NodeOrLeaf

from mutation.sites import Fault, Place, key_of

# `a | b` of two numbers would mostly be an error for `a + b`: such mutants are noticed too easily to tell anything.
BINARY = ["Add_Sub", "Sub_Add", "Mul_Add", "Mul_Div", "Div_Mul", "Div_FloorDiv", "FloorDiv_Div", "FloorDiv_Mul"]
BINARY += ["Mod_FloorDiv", "Mod_Mul", "Pow_Mul", "RShift_LShift", "LShift_RShift"]
BINARY += ["BitOr_BitAnd", "BitAnd_BitOr", "BitXor_BitOr"]
COMPARISON = ["Eq_NotEq", "NotEq_Eq", "Lt_LtE", "Lt_Gt", "LtE_Lt", "LtE_GtE", "Gt_GtE", "Gt_Lt", "GtE_Gt", "GtE_LtE"]
COMPARISON += ["Is_IsNot", "IsNot_Is"]
OTHER = [f"ReplaceUnaryOperator_Delete_{name}" for name in ("USub", "Invert", "Not")]
OTHER += ["ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd", "AddNot"]
OTHER += ["ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ExceptionReplacer", "NumberReplacer"]
OTHER += ["RemoveDecorator", "ZeroIterationForLoop"]
OPERATORS = (
    [f"ReplaceBinaryOperator_{name}" for name in BINARY]
    + [f"ReplaceComparisonOperator_{name}" for name in COMPARISON]
    + OTHER
)
# What an operator looks at, where it is one kind of node: most of them need not be asked.
ONLY = {"ReplaceBinaryOperator": "operator", "ReplaceComparisonOperator": "comparison"}
PAIRS = [("min", "max"), ("any", "all"), ("floor", "ceil"), ("minimum", "maximum"), ("argmin", "argmax")]
PAIRS += [("amin", "amax")]
SWAPPED = {a: b for x, y in PAIRS for a, b in ((x, y), (y, x))}
AUGMENTED = {"+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "//=": "*=", "|=": "&=", "&=": "|=", "^=": "|="}
AUGMENTED["%="] = "//="

Position = tuple[int, int]


def find(path: str, source: str) -> list[Place]:
    tree = parso.parse(source)
    lines = source.splitlines(keepends=True)
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))
    faults: dict[tuple[Position, Position], list[Fault]] = defaultdict(list)
    around: dict[tuple[Position, Position], tuple[int, int]] = {}

    def replaced(start: Position, end: Position, text: str) -> str:
        return source[: offsets[start[0] - 1] + start[1]] + text + source[offsets[end[0] - 1] + end[1] :]

    nodes = list(ast_nodes(tree))
    ours = {id(node) for node in nodes if counts(node)}
    for name in OPERATORS:
        operator, occurrence = get_operator(f"core/{name}")(), 0
        only = next((kind for start, kind in ONLY.items() if name.startswith(start)), None)
        for node in nodes:
            if only and node.type != only:
                continue
            for place in operator.mutation_positions(node):
                if id(node) in ours:
                    faults[place].append(Fault(name, functools.partial(mutate_code, source, operator, occurrence)))
                    around[place] = statement_lines(node)
                occurrence += 1
    for node in nodes:
        if id(node) in ours:
            for kind, start, end, text in own_faults(node):
                faults[start, end].append(Fault(kind, functools.partial(replaced, start, end, text)))
                around[start, end] = statement_lines(node)

    places = []
    for (start, end), there in sorted(faults.items(), key=lambda item: item[0]):
        key = key_of(lines, start[0] - 1, (start[1], end[1])) + (f" {end[0] - start[0]}" if end[0] != start[0] else "")
        places.append(Place(path, key, around[start, end], tuple(there)))
    return places


def own_faults(node: NodeOrLeaf) -> Iterator[tuple[str, Position, Position, str]]:
    """(kind, start, end, new text) of the faults that cosmic-ray does not have."""
    if node.type == "name" and node.value in SWAPPED and is_called(node):
        yield "swap_function", node.start_pos, node.end_pos, SWAPPED[node.value]
    elif node.type == "operator" and node.value in AUGMENTED:
        yield "augmented", node.start_pos, node.end_pos, AUGMENTED[node.value]
    elif node.type == "keyword" and node.value == "in" and node.parent.type == "comparison":
        yield "membership", node.start_pos, node.end_pos, "not in"
    elif node.type == "comp_op" and node.get_code().split() == ["not", "in"]:
        yield "membership", node.start_pos, node.end_pos, "in"
    elif node.type == "arglist" and not commutes(node):  # one place, whatever its length
        operands = [child for child in node.children if child.type != "operator"]
        for a, b in zip(operands, operands[1:]):
            if "argument" not in (a.type, b.type):
                swapped = [{a: b, b: a}.get(child, child) for child in node.children]
                prefixes = ["", *(child.get_first_leaf().prefix for child in node.children[1:])]
                text = "".join(prefix + code(child) for prefix, child in zip(prefixes, swapped))
                yield "swap_arguments", node.start_pos, node.end_pos, text
    elif node.type == "return_stmt":
        yield "return_none", node.start_pos, node.end_pos, "return None"
    elif removable(node):
        yield "remove_statement", node.start_pos, node.end_pos, "pass"


def removable(node: NodeOrLeaf) -> bool:
    """A statement whose absence leaves a program that may run: a call, a raise, an assignment into something."""
    if node.parent is None or node.parent.type != "simple_stmt":
        return False
    if node.type == "raise_stmt":
        return True
    if node.type == "atom_expr":
        return node.children[-1].type == "trailer" and node.children[-1].children[0].value == "("
    if node.type == "expr_stmt":
        target, operator = node.children[0], node.children[1]
        return operator.type == "operator" and (operator.value in AUGMENTED or target.type == "atom_expr")
    return False


def commutes(arguments: NodeOrLeaf) -> bool:
    return arguments.get_previous_leaf().get_previous_leaf().value in ("min", "max", "minimum", "maximum")


def is_called(name: NodeOrLeaf) -> bool:
    after = name.get_next_leaf()
    return after is not None and after.value == "(" and name.parent.type not in ("funcdef", "classdef")


def code(node: NodeOrLeaf) -> str:
    return str(node.get_code(include_prefix=False))


def counts(node: NodeOrLeaf) -> bool:
    """No annotations, assertions, imports, nor what only `python -m` or a type checker runs."""
    if node.type == "decorator" and "overload" in code(node):
        return False
    child = node
    while child.parent is not None:
        parent = child.parent
        if child.type in ("assert_stmt", "import_from", "import_name"):
            return False
        if parent.type == "annassign" and child is parent.children[1]:
            return False
        if parent.type in ("tfpdef", "param") and child is getattr(parent, "annotation", None):
            return False
        if parent.type == "tfpdef" and child is parent.children[-1]:
            return False
        if parent.type == "funcdef" and child is parent.annotation:
            return False
        if child.type == "if_stmt" and code(child.children[1]).split()[0] in ("__name__", "TYPE_CHECKING"):
            return False
        child = parent
    return True


def statement_lines(node: NodeOrLeaf) -> tuple[int, int]:
    """First and last line of the simple statement around a node; in the head of a compound one, those of the node."""
    inner = node
    while inner.parent is not None and inner.type != "simple_stmt":
        inner = inner.parent
    if inner.type == "simple_stmt":
        return inner.start_pos[0], inner.children[-1].start_pos[0]
    return node.start_pos[0], node.end_pos[0]
