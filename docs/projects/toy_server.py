"""C4 打的玩具服务：OpenAI 兼容的流式 completions，连续批处理，一步的时间用 sleep 假装。只用标准库。

一步 = base + per_seq × 同时几条；每一步给手里的每条出一个 token，新来的下一步上车。"""

import json
import queue
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Engine(threading.Thread):
    """手里的每条是 [还要几个 token, 往哪送]。"""

    def __init__(self, base_s, per_seq_s):
        super().__init__(daemon=True)
        self.base_s, self.per_seq_s, self.active, self.arrived = base_s, per_seq_s, [], queue.Queue()
        self.start()

    def run(self):
        while True:
            if not self.active:
                self.active.append(self.arrived.get())
            while not self.arrived.empty():
                self.active.append(self.arrived.get())
            time.sleep(self.base_s + self.per_seq_s * len(self.active))
            for request in self.active:
                request[0] -= 1
                request[1].put(request[0])
            self.active = [request for request in self.active if request[0] > 0]


def serve(base_s, per_seq_s):
    """开在一个空端口上，返回地址。"""
    engine = Engine(base_s, per_seq_s)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            tokens = queue.Queue()
            engine.arrived.put([int(asked["max_tokens"]), tokens])
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for left in iter(tokens.get, None):
                self.wfile.write(b'data: {"choices": [{"text": "x"}]}\n\n')
                self.wfile.flush()
                if left == 0:
                    break
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads, request_queue_size = True, 1024

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}/v1/completions"
