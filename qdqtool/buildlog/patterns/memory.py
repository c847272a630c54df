"""Memory of the builder and of the engine."""

from qdqtool.buildlog.pattern import PatternSet, message

PLUGIN = PatternSet(
    patterns=(
        message(
            "memory-peak-building",
            "[MemUsageStats] Peak memory usage during Engine building and serialization: CPU: {cpu:int} MiB",
            "[MemUsageStats] Peak memory usage during Engine building and serialization: CPU: 4322 MiB",
        ),
        message(
            "memory-change",
            "[MemUsageChange] {what}: CPU {cpu:int}, GPU {gpu:int}, now: CPU {cpu_now:int}, GPU {gpu_now:int} (MiB)",
            "[MemUsageChange] Init cuBLAS/cuBLASLt: CPU +248, GPU +102, now: CPU 437, GPU 725 (MiB)",
        ),
        message(
            "memory-peak",
            "[MemUsageStats] Peak memory usage of TRT CPU/GPU memory allocators: CPU {cpu:int} MiB, GPU {gpu:int} MiB",
            "[MemUsageStats] Peak memory usage of TRT CPU/GPU memory allocators: CPU 25 MiB, GPU 98 MiB",
        ),
        message(
            "memory-host", "Total Host Persistent Memory: {bytes}", "Total Host Persistent Memory: 86272"
        ),
        message(
            "memory-device",
            "Total Device Persistent Memory: {bytes}",
            "Total Device Persistent Memory: 75776 bytes",
        ),
        message(
            "memory-scratch",
            "Total Scratch Memory: {bytes}",
            "Total Scratch Memory: 4608",
            "Total Scratch Memory: 0 bytes",
        ),
        message(
            "memory-activation",
            "Total Activation Memory: {bytes}",
            "Total Activation Memory: 22118400",
            "Total Activation Memory: 512 bytes",
        ),
        message("memory-weights", "Total Weights Memory: {bytes}", "Total Weights Memory: 12846592 bytes"),
    )
)
