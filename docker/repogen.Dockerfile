# repogen for pods and services that convert nothing: sync, the nightly scan, Locust's master and workers.
#
#   docker build --tag=repogen:0.1.0 --file=docker/repogen.Dockerfile .
FROM python:3.12-slim

COPY pyproject.toml README.md CHANGELOG.md LICENSE /build/
COPY repogen /build/repogen
COPY templates /build/templates
COPY loadtests /build/loadtests
RUN python3 -m pip install --no-cache-dir "/build[proof,load,s3]" && rm -rf /build
COPY loadtests /loadtests

USER 1000:1000
ENV HOME=/tmp
CMD ["python3", "-m", "repogen", "--help"]
