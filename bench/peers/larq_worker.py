"""The child process of `ovsw.bench.peers.larq`, run by another python: stands alone, and has only its pipe.

Reads images (their size in bytes as int64, then float32 NHWC), answers with the nanoseconds of one inference and the
size of the logits (int64 each), then the logits.
"""

import os
import struct
import sys
import time
from pathlib import Path


def main() -> None:
    del sys.path[0]  # this folder, whose modules are named like engines
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what TensorFlow prints must not get into the answers
    import numpy as np
    from larq_compute_engine.tflite.python.interpreter import Interpreter

    # Of its settings the fastest; its default is several times slower.
    model, threads = Path(sys.argv[1]).read_bytes(), int(sys.argv[2])
    net = Interpreter(model, num_threads=threads, use_indirect_bgemm=True, use_xnnpack=True)
    (shape,) = net.input_shapes
    pipe.write(b"ready\n")
    pipe.flush()
    while len(head := sys.stdin.buffer.read(8)) == 8:
        image = np.frombuffer(sys.stdin.buffer.read(struct.unpack("<q", head)[0]), np.float32).reshape(shape)
        start = time.perf_counter_ns()
        logits = net.predict(image)
        nanoseconds = time.perf_counter_ns() - start
        data = np.asarray(logits, np.float32).tobytes()
        pipe.write(struct.pack("<qq", nanoseconds, len(data)) + data)
        pipe.flush()


if __name__ == "__main__":
    main()
