"""One module per op: its node, its traits, and how each pass treats it.

A pass of `export.passes` walks over the graph and asks each node: `fold`, `sink`, `quantize`, `to_onnx` and so on are
methods of the node in the op's module. `node.Node` lists all of them, with the defaults that hold for most ops.
Whatever concerns several ops at once (fusing, tied scales, zeros) is in the pass itself.
"""
