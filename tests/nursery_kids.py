"""What a nursery's children do in tests/test_child.py."""

import os
import signal
import time
from pathlib import Path


def answer(question):
    match question["do"]:
        case "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "eat":
            return {"size": len(bytearray(2**34))}
        case "sleep":
            time.sleep(60)
        case "fail":
            raise ValueError("as asked")
        case "print":
            os.write(1, b"not the answer")
    return {"pid": os.getpid(), "parent": os.getppid(), "folder": str(Path.cwd()), "stdin": os.read(0, 1).decode()}
