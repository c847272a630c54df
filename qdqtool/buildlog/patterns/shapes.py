"""The symbolic shape check of TensorRT 10: every layer with the extents of its tensors."""

from qdqtool.buildlog.pattern import LogSection, PatternSet, message, row

PLUGIN = PatternSet(
    patterns=(message("shapes-nodes", "GRAPH NODES", "GRAPH NODES"),),
    sections=(
        LogSection(
            opens="shapes-nodes",
            first=True,
            rows=(
                row("shapes-tensor", r"(?P<direction>Input|Output) (?P<index>\d+)", "Input 0", "Output 1"),
                row(
                    "shapes-extent",
                    r"(?P<range>-?\d+|\[-?\d+,-?\d+\])\t(?P<symbol>\S.*)",
                    "1024\t1024",
                    "[1,16]\tnBS",
                    "[1,4]\t(# 0 (SHAPE x))",
                ),
                row(
                    "shapes-layer",
                    r"(?P<kind>[A-Z][A-Z_0-9]{2,40}) (?P<layer>\S.*)",
                    "CONVOLUTION node_conv2d",
                    "MATRIX_MULTIPLY node_linear",
                ),
            ),
        ),
    ),
)
