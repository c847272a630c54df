"""One file per fact about TensorRT, with one rule or several.

The file's docstring documents `PLUGIN = Rule(...)`. For `PLUGIN = {"name": Rule(...), ...}`, each rule is documented
by the part of the docstring under the heading `# name`. Rules of one file share their matching functions.

A `place` function may state, as data:

- `SlotStatement`: quantize this input of a node (REQUEST), or keep it float (VETO), and why;
- `JointSlots`: quantize all of these inputs or none;
- `SharedScale`: these tensors have the same scale, if the first of them is quantized.

Other distributions add rules through the entry-point group `qdqtool.rules`.
"""
