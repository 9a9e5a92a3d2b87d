# The image of manifests/: docker build --tag gpu-extender:0.2.0 .
# Of several platforms: docker buildx build --platform linux/amd64,linux/arm64 --sbom=true --tag NAME --push .
# The kernels are C without instructions of one processor; each platform compiles its own.
ARG PYTHON=3.13

FROM python:${PYTHON}-bookworm AS build
WORKDIR /source
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY ext_core ext_core
COPY extender extender
COPY .ci/install .ci/locked.py .ci/
# Once: the wheel. Then what the image has, at the place where it will be.
RUN python .ci/locked.py build > /requirements \
 && python -m pip install --quiet --require-hashes --only-binary :all: --requirement /requirements \
 && python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir /wheels . \
 && .ci/install python /wheels/*.whl /opt/gpu-extender

FROM python:${PYTHON}-slim-bookworm
LABEL org.opencontainers.image.title="gpu-extender" \
      org.opencontainers.image.description="A kube-scheduler extender that places GPU pods" \
      org.opencontainers.image.version="0.2.0" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/gpu-extender /opt/gpu-extender
# Python never writes into the root file system, which is read-only in manifests/.
ENV PATH=/opt/gpu-extender/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
CMD ["gpu-extender", "serve"]
