"""P2、P3 用的小 GPT，NumPy 手写前向和反向。

L 层，宽 h，头宽 64，前馈 4h，ReLU，不带参数的 RMSNorm，词表进出各一份：N = 12Lh² + 2Vh。"""

import math


class NumpyGPT:
    def __init__(self, np, layers, width, vocab):
        draw = np.random.default_rng(0)
        shapes = [(vocab, width), (width, vocab)] + layers * [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
        self.np, self.layers, self.heads = np, layers, max(1, width // 64)
        self.weights = [draw.standard_normal(s, dtype=np.float32) * np.float32(0.02) for s in shapes]
        self.moments = None

    def norm(self, x):
        r = 1 / self.np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
        return x * r, r

    def norm_back(self, d, y, r):
        return r * (d - y * (d * y).mean(-1, keepdims=True))

    def split(self, x):
        return x.reshape(*x.shape[:2], self.heads, -1).swapaxes(1, 2)

    def merge(self, x):
        return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)

    def softmax(self, x):
        x = self.np.exp(x - x.max(-1, keepdims=True))
        x /= x.sum(-1, keepdims=True)
        return x

    def forward(self, tokens):
        """词的概率，和反向要用的激活。"""
        np, x, kept = self.np, self.weights[0][tokens], []
        mask = np.triu(np.full(2 * tokens.shape[1:], -1e9, np.float32), 1)
        for qkv, out, up, down in zip(*[iter(self.weights[2:])] * 4):  # noqa: B905
            n1, r1 = self.norm(x)
            q, k, v = (np.ascontiguousarray(self.split(t)) for t in np.split(n1 @ qkv, 3, -1))
            p = self.softmax(q @ k.swapaxes(-1, -2) / np.float32(math.sqrt(q.shape[-1])) + mask)
            o = self.merge(p @ v)
            x = x + o @ out
            n2, r2 = self.norm(x)
            u = np.maximum(n2 @ up, 0)
            x = x + u @ down
            kept.append((n1, r1, q, k, v, p, o, n2, r2, u))
        last = self.norm(x)
        return self.softmax(last[0] @ self.weights[1]), (tokens, last, kept)

    def backward(self, probs, targets, saved):
        """交叉熵的梯度，次序和 weights 一样；probs 就地改成它的梯度。"""
        np, (tokens, (n, r), kept), wide = self.np, saved, lambda a, b: a.reshape(-1, a.shape[-1]).T @ b.reshape(-1, b.shape[-1])
        np.put_along_axis(probs, targets[..., None], np.take_along_axis(probs, targets[..., None], -1) - 1, -1)
        probs /= targets.size
        grads, dx = [wide(n, probs)], self.norm_back(probs @ self.weights[1].T, n, r)
        for i in reversed(range(self.layers)):
            (qkv, out, up, down), (n1, r1, q, k, v, p, o, n2, r2, u) = self.weights[2 + 4 * i : 6 + 4 * i], kept.pop()
            du = (dx @ down.T) * (u > 0)
            g_down, g_up = wide(u, dx), wide(n2, du)
            dx = dx + self.norm_back(du @ up.T, n2, r2)
            do = self.split(dx @ out.T)
            dp = do @ v.swapaxes(-1, -2)
            ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / np.float32(math.sqrt(q.shape[-1]))
            d = np.concatenate([self.merge(t) for t in (ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do)], -1)
            grads += [g_down, g_up, wide(o, dx), wide(n1, d)]
            dx = dx + self.norm_back(d @ qkv.T, n1, r1)
        embedding = np.zeros_like(self.weights[0])
        np.add.at(embedding, tokens, dx)
        return [embedding, grads[0], *grads[:0:-1]]

    def step(self, grads, lr=1e-3):
        """Adam；m、v 第一步才创建。"""
        self.moments = self.moments or [(self.np.zeros_like(w), self.np.zeros_like(w)) for w in self.weights]
        for w, g, (m, v) in zip(self.weights, grads, self.moments):  # noqa: B905
            m += 0.1 * (g - m)
            v += 0.05 * (g * g - v)
            w -= lr * m / (self.np.sqrt(v) + 1e-8)
