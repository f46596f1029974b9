# Two images of one file (docs/releasing.md#images):
#   docker build --target compile -t autotune .      the command: tune, compile, bench, export
#   docker build --target run -t autotune-run .      NumPy and the package: loads and runs artifacts
# dist/ has the wheel of `make release` or `python -m release.build`.
ARG PYTHON=3.13-slim

FROM python:${PYTHON} AS run
RUN --mount=type=bind,source=dist,target=/dist \
    pip install --no-cache-dir "numpy>=2.1,<3" \
    && pip install --no-cache-dir --no-deps /dist/autotune_compiler-*.whl \
    && useradd --create-home --uid 10001 autotune
USER autotune
WORKDIR /home/autotune
ENV PYTHONUNBUFFERED=1
# Where a server is made of it: one that asks the server. This one says that the package can load what it is for.
HEALTHCHECK --interval=60s --timeout=10s \
    CMD ["python", "-c", "import autotune, os; os.path.exists('model.atn') and autotune.load('model.atn')"]
CMD ["python"]

FROM python:${PYTHON} AS compile
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,source=dist,target=/dist \
    pip install --no-cache-dir "$(ls /dist/autotune_compiler-*.whl)[tune,fallback,export]" \
    && useradd --create-home --uid 10001 autotune
USER autotune
WORKDIR /home/autotune
HEALTHCHECK NONE
ENTRYPOINT ["autotune"]
