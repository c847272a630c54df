"""Predicts from rules how TensorRT builds a Q/DQ graph.

For every target: the precision of each node, and the nodes for which the prediction may not hold. For classic
TensorRT 8.x to 10.x, whose builder needs a GPU, also predict the engine layers and how every Q and DQ ends, as
build logs show them. TensorRT for RTX builds without a GPU, so its layers come from a build
(`pipeline.building.predict_built`).
"""
