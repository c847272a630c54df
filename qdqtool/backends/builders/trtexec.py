"""trtexec of any release, on a machine with an NVIDIA GPU.

    qdqtool build model.onnx --out built --builder trtexec --flags "--fp16 --builderOptimizationLevel=5"

The program is the one that QDQTOOL_TRTEXEC names, else that of PATH, else /usr/src/tensorrt/bin/trtexec. The
program's own --help shows which flags it has, so any release works. If they exist, --exportLayerInfo,
--profilingVerbosity=detailed, --verbose and --skipInference (or --buildOnly) are set. All of --flags is passed on; an
unknown flag is refused before the start.

A model with Q/DQ is built with --stronglyTyped if the release has this flag, otherwise with --int8, unless --flags
sets a precision. All output is kept in `build.log` as it was written, standard error in its place; the layer
information is `layers.txt`.

The things people do with trtexec, and how to say them here (`qdqtool migrate -- trtexec ...` translates any line):

    trtexec --onnx=m.onnx                                  qdqtool build m.onnx --out b --builder trtexec
    ... --saveEngine=e --timingCacheFile=c --minShapes=... --optShapes=... --maxShapes=... --fp16 --noTF32
        --memPoolSize=workspace:1024MiB --builderOptimizationLevel=5 --maxAuxStreams=4 --skipInference --verbose
                                                           qdqtool build m.onnx --out b --builder trtexec
                                                             --min-shapes ... --opt-shapes ... --max-shapes ...
                                                             --flags "--timingCacheFile=c --fp16 --noTF32 ..."
    trtexec --loadEngine=e --noDataTransfers --useSpinWait --useCudaGraph
                                                           qdqtool time e --trust (these are its defaults)
    ... --profilingVerbosity=detailed --dumpLayerInfo --exportLayerInfo=i
                                                           every build does; then qdqtool engine b/layers.txt
    ... --dumpProfile --exportTimes=t --exportProfile=p    qdqtool time e --trust --profile --save folder
    ... --dumpOutput --dumpRawBindingsToFile               qdqtool time e --trust --rounds 1 --save folder
                                                             --flags "--dumpOutput --dumpRawBindingsToFile"
    ... --loadInputs=x:x.raw --dumpOutput                  the same with --flags "--loadInputs=x:x.raw --dumpOutput"
    ... --warmUp=0 --duration=0 --iterations=N             qdqtool time e --trust --warm-up 0 --rounds 1 --iterations N

Not tested: no trtexec was run in the tests of qdqtool, which have no GPU. They use programs that behave like it, with
help texts and outputs in the forms of 8.x, 10.x and 11.x.
"""

from qdqtool.backends.trtexec.build import TrtexecBuilder

PLUGIN = TrtexecBuilder()
