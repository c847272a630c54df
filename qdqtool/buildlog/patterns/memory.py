"""Memory of the builder and of the engine."""

from qdqtool.buildlog.sentence import Family, says

PLUGIN = Family(
    sentences=(
        says(
            "memory-layer-old",
            "Layer: {layer>} HostPersistent: {host:int} DevicePersistent: {device:int}",
            "Layer: Conv__25 + Relu HostPersistent: 1664 DevicePersistent: 8192",
        ),
        says(
            "memory-peak-building",
            "[MemUsageStats] Peak memory usage during Engine building and serialization: CPU: {cpu:int} MiB",
            "[MemUsageStats] Peak memory usage during Engine building and serialization: CPU: 4322 MiB",
        ),
        says(
            "memory-runner",
            "Total per-runner device memory is {bytes:int}",
            "Total per-runner device memory is 214528",
        ),
        says(
            "memory-runner",
            "Total per-runner host memory is {bytes:int}",
            "Total per-runner host memory is 4032",
        ),
        says(
            "memory-activation-reserved",
            "Reserving memory for activation tensors. Host: {host:int} bytes Device: {device:int} bytes",
            "Reserving memory for activation tensors. Host: 0 bytes Device: 25120 bytes",
        ),
        says(
            "memory-change",
            "[MemUsageChange] {what}: CPU {cpu:int}, GPU {gpu:int}, now: CPU {cpu_now:int}, GPU {gpu_now:int} (MiB)",
            "[MemUsageChange] Init cuBLAS/cuBLASLt: CPU +248, GPU +102, now: CPU 437, GPU 725 (MiB)",
        ),
        says(
            "memory-snapshot",
            "[MemUsageSnapshot] {what}: CPU {cpu:int} MiB, GPU {gpu:int} MiB",
            "[MemUsageSnapshot] Begin constructing builder kernel library: CPU 300 MiB, GPU 2000 MiB",
        ),
        says(
            "memory-peak",
            "[MemUsageStats] Peak memory usage of TRT CPU/GPU memory allocators: CPU {cpu:int} MiB, GPU {gpu:int} MiB",
            "[MemUsageStats] Peak memory usage of TRT CPU/GPU memory allocators: CPU 25 MiB, GPU 98 MiB",
        ),
        says(
            "memory-layer",
            "Layer: {layer>} Host Persistent: {host:int} Device Persistent: {device:int} Scratch Memory: {scratch:int}",
            "Layer: Conv_1 + Relu_2 Host Persistent: 4016 Device Persistent: 75776 Scratch Memory: 0",
        ),
        says(
            "memory-layer",
            "Layer: {layer>} Host Persistent: {host:int} bytes Device Persistent: {device:int} bytes "
            "Scratch Memory: {scratch:int} bytes",
            "Layer: node_conv2d Host Persistent: 336 bytes Device Persistent: 0 bytes Scratch Memory: 0 bytes",
        ),
        says(
            "memory-layers-skipped",
            "Skipped printing memory information for {layers:int} layers with 0 memory size i.e. {rest}",
            "Skipped printing memory information for 3 layers with 0 memory size i.e. Host Persistent + Device "
            "Persistent + Scratch Memory == 0.",
        ),
        says("memory-host", "Total Host Persistent Memory: {bytes}", "Total Host Persistent Memory: 86272"),
        says(
            "memory-device",
            "Total Device Persistent Memory: {bytes}",
            "Total Device Persistent Memory: 75776 bytes",
        ),
        says(
            "memory-scratch",
            "Total Scratch Memory: {bytes}",
            "Total Scratch Memory: 4608",
            "Total Scratch Memory: 0 bytes",
        ),
        says(
            "memory-activation",
            "Total Activation Memory: {bytes}",
            "Total Activation Memory: 22118400",
            "Total Activation Memory: 512 bytes",
        ),
        says("memory-weights", "Total Weights Memory: {bytes}", "Total Weights Memory: 12846592 bytes"),
        says(
            "memory-runner-device",
            "Total per-runner device persistent memory is {bytes}",
            "Total per-runner device persistent memory is 130560",
        ),
        says(
            "memory-runner-host",
            "Total per-runner host persistent memory is {bytes}",
            "Total per-runner host persistent memory is 168256",
        ),
        says(
            "memory-allocated",
            "Allocated activation device memory of size {bytes:int}",
            "Allocated activation device memory of size 39865856",
        ),
        says(
            "memory-allocated",
            "Allocated device scratch memory of size {bytes:int}",
            "Allocated device scratch memory of size 4608",
        ),
        says(
            "memory-host-io",
            "Reserving memory for host IO tensors. Host: {bytes:int} bytes",
            "Reserving memory for host IO tensors. Host: 0 bytes",
        ),
        says("memory-block", "Block size {bytes:int}", "Block size 1073741824", light="all"),
        says(
            "blocks-before",
            "Total number of blocks in pre-optimized block assignment: {blocks:int}",
            "Total number of blocks in pre-optimized block assignment: 26",
        ),
        says(
            "blocks-after",
            "Total number of blocks in optimized block assignment: {blocks:int}",
            "Total number of blocks in optimized block assignment: 4",
        ),
        says(
            "blocks-begin",
            "[BlockAssignment] Started assigning block shifts. This will take {steps:int} steps to complete.",
            "[BlockAssignment] Started assigning block shifts. This will take 27 steps to complete.",
        ),
        says(
            "blocks-alive",
            "STILL ALIVE: Started step {step:int} of {steps:int}",
            "STILL ALIVE: Started step 26 of 27",
            light="all",
        ),
        says(
            "blocks-assigned",
            "[BlockAssignment] Algorithm {algorithm} took {ms:num}ms to assign {blocks:int} blocks to {nodes:int} "
            "nodes requiring {bytes:int} bytes.",
            "[BlockAssignment] Algorithm ShiftNTopDown took 0.00947ms to assign 1 blocks to 1 nodes requiring 512 bytes.",
        ),
        says("refitter-size", "refitter_plan_size: {bytes:int}", "refitter_plan_size: 12"),
    )
)
