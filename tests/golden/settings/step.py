# a Triton Python backend model would stand here
