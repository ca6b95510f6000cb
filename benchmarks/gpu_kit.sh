# Source this with KIT set to the unpacked kit (TensorRT 8.6, Python 3.10, Triton 2.51): `py310` is then a Python that has
# them by itself, without PYTHONPATH or LD_LIBRARY_PATH. The embedded server probes and starts its Python in isolation.
# shellcheck shell=bash
: "${KIT:?set KIT to the folder of the unpacked kit}"
for library in "$KIT"/stub/*.so.*; do
  ln -sf "$library" "$KIT/trt/tensorrt/$(basename "$library")" # where TensorRT's own libraries look first
done
printf '%s\n' "$KIT/site" "$KIT/trt" "$KIT/triton" >"$KIT/python/lib/python3.10/site-packages/kit.pth"
chmod +x "$KIT/triton/pytriton/tritonserver/bin/tritonserver"
unset PYTHONHOME PYTHONPATH
export LD_LIBRARY_PATH="$KIT/python/lib"
py310() { "$KIT/python/bin/python3.10" "$@"; }
