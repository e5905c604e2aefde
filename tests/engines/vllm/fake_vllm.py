#!/usr/bin/env python3
"""Stands in for `vllm`: `fake_vllm.py serve MODEL --port N`, where MODEL says how to behave.

ready | dies | never | stubborn (ignores TERM, and has a child that does) | draining (busy for the
first three looks at /metrics)
"""

from __future__ import annotations

import http.server
import os
import signal
import sys
import time


def main() -> None:
    mode, port = sys.argv[2], int(sys.argv[sys.argv.index("--port") + 1])
    print(f"fake vllm: {mode}", flush=True)
    if mode == "dies":
        print("RuntimeError: no such model", flush=True)
        sys.exit(3)
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:  # the engine core
        print(f"child {os.getpid()}", flush=True)
        while True:
            time.sleep(60)
    if mode == "never":
        time.sleep(600)
    serve(port, 3 if mode == "draining" else 0)


def serve(port: int, busy: int) -> None:
    left = busy

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal left
            body = b""
            if self.path == "/metrics":
                body = f"vllm:num_requests_running {left}.0\n".encode()
                left = max(0, left - 1)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()


main()
