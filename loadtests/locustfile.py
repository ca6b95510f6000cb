"""Drive one Triton model over gRPC.

Usually started by `repogen bench`; by itself, web UI included:

    locust -f loadtests/locustfile.py --host 127.0.0.1:8001 --model text_rec
"""

from repogen.load.user import TritonUser


class InferUser(TritonUser):
    """One client asking one model."""
