"""P2、P3 用的小 GPT，PyTorch 版；和 tiny_gpt.py 同样的层、同样的参数量。"""

import torch
from torch.nn.functional import cross_entropy, layer_norm, scaled_dot_product_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEAD = 64


class Block(torch.nn.Module):
    def __init__(self, width, sdpa):
        super().__init__()
        shapes = {"qkv": (1, 3), "out": (1, 1), "up": (1, 4), "down": (4, 1)}
        for name, (i, o) in shapes.items():
            setattr(self, name, torch.nn.Linear(i * width, o * width, bias=False))
        self.sdpa = sdpa

    def attend(self, q, k, v):
        """融合的不落地；不融合的把 s×s 的分数写出来。"""
        if self.sdpa:
            return scaled_dot_product_attention(q, k, v, is_causal=True)
        future = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        return (q @ k.transpose(-1, -2) / HEAD**0.5).masked_fill(future, float("-inf")).softmax(-1) @ v

    def forward(self, x):
        q, k, v = self.qkv(layer_norm(x, x.shape[-1:])).unflatten(-1, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(self.up(layer_norm(x, x.shape[-1:])).relu())


class Trainer:
    """一步分三段：forward、backward、step，好在中间量显存。"""

    def __init__(self, layers, width, vocab, batch, seq, sdpa=False, bf16=False, compile=False):
        parts = [torch.nn.Embedding(vocab, width), *(Block(width, sdpa) for _ in range(layers)), torch.nn.Linear(width, vocab, bias=False)]
        self.model, self.bf16 = torch.nn.Sequential(*parts).to(DEVICE), bf16
        self.run = torch.compile(self.model) if compile else self.model
        self.adam = torch.optim.Adam(self.model.parameters())
        self.tokens = torch.randint(vocab, (batch, seq + 1), device=DEVICE)

    def forward(self):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=self.bf16):
            return cross_entropy(self.run(self.tokens[:, :-1]).flatten(0, 1), self.tokens[:, 1:].flatten())

    def step(self):
        self.adam.step()
        self.adam.zero_grad()

    def held(self):
        """权重、梯度、Adam 各占几字节。"""
        weights = list(self.model.parameters())
        states = [t for state in self.adam.state.values() for t in state.values() if t.dim()]
        return [sum(t.numel() * t.element_size() for t in group) for group in (weights, [w.grad for w in weights], states)]

    def whole_step(self):
        self.forward().backward()
        self.step()


def sync():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def square(bf16):
    """一个大矩阵乘：现场测峰值用。返回边长和活。"""
    n = 8192 if DEVICE == "cuda" else 1024
    a = torch.randn(n, n, device=DEVICE, dtype=torch.bfloat16 if bf16 else torch.float32)
    return n, lambda: a @ a
