# repogen in NVIDIA's TensorRT image of the release that serves: the plans that it builds are those that this
# release's Triton loads. `builder: docker` in a manifest runs it, one container a build.
#
#   docker build --build-arg=RELEASE=26.08 --tag=repogen-builder:26.08 --file=docker/builder.Dockerfile .
ARG RELEASE
FROM nvcr.io/nvidia/tensorrt:${RELEASE}-py3

COPY pyproject.toml README.md CHANGELOG.md LICENSE /repogen/
COPY repogen /repogen/repogen
COPY templates /repogen/templates
COPY loadtests /repogen/loadtests
RUN python3 -m pip install --no-cache-dir --break-system-packages "polygraphy>=0.50" "/repogen[proof,s3]" \
 || python3 -m pip install --no-cache-dir "polygraphy>=0.50" "/repogen[proof,s3]"

ENTRYPOINT []
CMD ["python3", "-m", "repogen", "--help"]
