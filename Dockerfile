# qdqtool with TensorRT for RTX: quantizes, builds and audits without a GPU.
#
#   docker build -t qdqtool .
#   docker run --rm --user "$(id -u)" -v "$PWD:/data" qdqtool run model.onnx --samples calibration/ --out runs/first
#
# The digest is that of 3.12.14-slim-trixie; `docker buildx imagetools inspect python:3.12-slim` prints a newer one.
# Built and run by buildah on a Debian base with Python 3.12, not yet by Docker on the base that is named here.
# A variant for timing on a GPU, never built, starts from an image with CUDA, as nvidia/cuda:12.8.1-base-ubuntu24.04 with
# python3-venv, installs '.[rtx,trt]' and 'cuda-python', and runs with --gpus all.
FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . && cp .ci/image.lock /wheels

FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --require-hashes -r /wheels/image.lock \
    && pip install --no-cache-dir --no-deps /wheels/qdqtool-*.whl && rm -r /wheels \
    && useradd --create-home --uid 1000 qdqtool
USER qdqtool
WORKDIR /data
ENTRYPOINT ["qdqtool"]
CMD ["doctor"]
