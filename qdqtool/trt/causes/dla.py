"""Causes of failed builds on DLA, the fixed-function cores of Jetson and DRIVE."""

from __future__ import annotations

from qdqtool.core.causes import Cause
from qdqtool.core.wording import Command

DLA = (
    Cause(
        name="dla-absent",
        area="dla",
        pattern=r"dlaEngineCount > 0|Cannot create DLA engine, \d+ not available|DLA (?:core )?\d+ (?:is )?not available|[Nn]o DLA cores? (?:is |are )?available",
        meaning="the builder finds no DLA core: this module has none (Jetson Nano, TX2, Orin Nano), or the container does not reach it",
        fix="build for the GPU (without --useDLACore); in a container: start it with the NVIDIA runtime (--runtime nvidia), from an image of the host's JetPack",
        fault="machine",
        releases="5 to 10, and 11.4.1",
    ),
    Cause(
        name="dla-no-fallback",
        area="dla",
        pattern=r"falling back to GPU is not enabled",
        meaning="DLA cannot run this layer, and the build does not allow the GPU to run it",
        fix="allow the GPU with --allowGPUFallback, or replace the layer by one that DLA runs",
        releases="5 to 10, and 11.4.1",
    ),
    Cause(
        name="direct-io",
        area="format",
        pattern=r"kDIRECT_IO specified but no conformant",
        meaning="the build forbids copies at its inputs and outputs (direct I/O), but no layer there accepts the requested types and formats",
        fix="remove --directIO, or request other formats (--inputIOFormats, --outputIOFormats); with DLA, add --allowGPUFallback",
        releases="8.2 to 10",
    ),
    Cause(
        name="dla-io",
        area="dla",
        pattern=r"forceToUseNvmIO",
        meaning="an input or output has a format that only DLA reads, but a layer beside it runs on the GPU",
        fix="build with --verbose: the log names the layers on the GPU; remove these layers from the model, or use other formats for these inputs and outputs "
        "(--inputIOFormats, --outputIOFormats). A standalone loadable needs every layer on DLA",
    ),
    Cause(
        name="dla-load",
        area="dla",
        pattern=r"NVMEDIA_DLA.{0,40}(?:load from memory|loadable)|DLA Error in deserialize|Failure to load program",
        meaning="DLA cannot load a program of this engine: it was compiled by another release, or for another module",
        fix="build the engine on this module, with the TensorRT of its JetPack",
        releases="5 to 10",
    ),
    Cause(
        name="dla-core-unset",
        area="dla",
        pattern=r"getDLACore\(\) >= 0",
        meaning="the engine has layers for DLA, and the program chose no DLA core to run it",
        fix="choose a core before the engine is loaded: runtime.DLA_core = 0 (C++: setDLACore), trtexec --useDLACore=0",
    ),
    Cause(
        name="dla-buffers",
        area="dla",
        pattern=r"registerTensorBuffer|tensor register failed",
        meaning="DLA cannot use the memory of an input or output: it is not memory that DLA reaches, or too many buffers are registered",
        fix="run the engine alone (trtexec --loadEngine=FILE --useDLACore=0); if it runs, let the program give memory from cudaMalloc or NvSci, and keep few buffers per engine",
        rank="general",
    ),
    Cause(
        name="dla-run",
        area="dla",
        pattern=r"cudlaUtils\.cpp::submit",
        meaning="the DLA did not accept the work of an engine at run time: often several threads or engines use one DLA core, or the driver or firmware failed",
        fix="run the engine alone (trtexec --loadEngine=FILE --useDLACore=0): if it runs, give each DLA core one thread; if not, update JetPack or DRIVE OS, and build the engine again",
        releases="8.5 to 10",
    ),
    Cause(
        name="dla-compile",
        area="dla",
        pattern=r"Failure to submit program to DLA|Error Code \d+: DLA|nvdlaUtils|NvMediaDla|RegionType::kNVM",
        meaning="the DLA compiler refused the program: too large, or with inputs and outputs that DLA cannot read",
        fix="build for a smaller batch or fewer layers on DLA, with DLA formats for its inputs and outputs (--inputIOFormats=int8:dla_linear)",
        releases="5 to 10, and 11.4.1",
    ),
    Cause(
        name="dla-standalone",
        area="dla",
        pattern=r"EngineCapability::kDLA_STANDALONE",
        meaning="a DLA loadable is not an engine for TensorRT's runtime",
        fix="load it with cuDLA, or build without --buildDLAStandalone",
        releases="8.4 to 10, and 11.4.1",
    ),
    Cause(
        name="dla-no-scale",
        area="dla",
        pattern=r"cannot run in INT8 mode due to missing scale and zero point\. This node will not run on DLA",
        meaning="DLA runs a layer in INT8 only if its tensors have scales of a calibration cache: it reads no Q/DQ, so this layer runs on the GPU",
        fix=f"take the scales out of the Q/DQ model ({Command('cache', ('from-qdq', 'MODEL', '--trt', '8.6.1', '--model', 'FLOAT_MODEL', '--out', 'CACHE'))}), "
        "and build the float model with --int8 --fp16 --calib=CACHE",
        effect="float",
        releases="8 to 10",
    ),
    Cause(
        name="dla-none",
        area="dla",
        pattern=r"no layer in the network can run on DLA",
        meaning="no layer of the network can run on DLA, so the GPU runs all of them",
        fix="build without --useDLACore; DLA runs convolutions, pools and elementwise layers in INT8 or FP16, so allow one of these types",
        effect="float",
        releases="5 to 10, and 11.4.1",
    ),
    Cause(
        name="dla-shapes",
        area="dla",
        pattern=r"DLA requests all profiles have same|DLA does not support dynamic shape",
        meaning="DLA runs fixed shapes only: with dynamic shapes the GPU runs these layers",
        fix="export the model with fixed shapes, or build with equal --minShapes, --optShapes and --maxShapes",
        effect="float",
        releases="7 to 10",
    ),
    Cause(
        name="dla-layer",
        area="dla",
        pattern=r"not supported for DLA|is not supported on DLA|DLA validation failed|Unsupported on DLA|Validation failed for DLA layer|which cannot run on DLA",
        meaning="DLA cannot run this layer: with --allowGPUFallback it runs on the GPU",
        fix="nothing to do if the GPU may run the layer; otherwise replace the layer",
        effect="warns",
        releases="5 to 10, and 11.4.1",
    ),
)
"""Causes about the deep-learning accelerator (DLA) of Jetson and DRIVE."""
