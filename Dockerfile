# qdqtool with TensorRT for RTX: quantizes, builds and audits without a GPU.
#
#   docker build -t qdqtool .
#   docker run --rm --user "$(id -u)" -v "$PWD:/data" qdqtool run model.onnx --samples calibration/ --out runs/first
#
# Built and run by buildah on a Debian base with Python 3.12, not yet by Docker on the base that is named here.
# A variant for timing on a GPU, never built, starts from an image with CUDA, as nvidia/cuda:12.8.1-base-ubuntu24.04 with
# python3-venv, installs '.[rtx,trt]' and 'cuda-python', and runs with --gpus all.
FROM python:3.12-slim AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . && cp .ci/image.lock /wheels

FROM python:3.12-slim
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --require-hashes -r /wheels/image.lock \
    && pip install --no-cache-dir --no-deps /wheels/qdqtool-*.whl && rm -r /wheels \
    && useradd --create-home --uid 1000 qdqtool
USER qdqtool
WORKDIR /data
ENTRYPOINT ["qdqtool"]
CMD ["doctor"]
