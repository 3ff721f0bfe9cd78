"""P2 显存账：把小 GPT 的权重、激活、梯度、Adam 一块一块量出来，和手算的账对。

跑：python3 memory_probe.py（要旁边的 tiny_gpt.py；有 PyTorch 用 tiny_gpt_torch.py）
NumPy 用 tracemalloc 量，CUDA 用 memory_allocated，PyTorch 的 CPU 版数反向要用的每个张量。全是 FP32。"""

import sys
import tracemalloc

try:
    import kit
except ImportError:
    sys.exit("缺 kit.py：把它和这个脚本放进同一个目录再跑（第 24 章有下载）。")

TABLE = {
    "layers": (8, 1, 96, "层数 L"),
    "width": (512, 64, 8192, "宽 h，64 的倍数"),
    "vocab": (8192, 16, 200000, "词表 V"),
    "seq": (256, 2, 32768, "一条几个 token"),
    "batch": (2, 1, 4096, "一步几条"),
    "bytes-per-param": (16.0, 1.0, 32.0, "你猜的每参数字节：权重 4、梯度 4、Adam 8"),
    "sdpa": (False, None, None, "用融合的注意力（要 PyTorch）"),
}


def with_numpy(a):
    np, gpt = kit.package("numpy", kit.NUMPY), kit.package("tiny_gpt", "把 tiny_gpt.py 放进同一个目录（第 24 章有下载）")
    tokens = np.random.default_rng(1).integers(0, a.vocab, (a.batch, a.seq + 1))
    tracemalloc.start()
    model = gpt.NumpyGPT(np, a.layers, a.width, a.vocab)
    for _ in range(2):  # 第一步才创建 Adam 的状态；第二步量激活、梯度和峰值
        tracemalloc.reset_peak()
        seen = [tracemalloc.get_traced_memory()[0]]
        probs, saved = model.forward(tokens[:, :-1])
        seen.append(tracemalloc.get_traced_memory()[0])
        grads = model.backward(probs, tokens[:, 1:], saved)
        del probs, saved
        seen += tracemalloc.get_traced_memory()
        model.step(grads)
        del grads
    weights = sum(w.nbytes for w in model.weights)
    return [weights, seen[1] - seen[0], seen[2] - seen[0], seen[0] - weights, seen[3]]


def with_torch(a):
    torch, gpt = kit.package("torch"), kit.package("tiny_gpt_torch", "把 tiny_gpt_torch.py 放进同一个目录（第 24 章有下载）")
    model, kept = gpt.Trainer(a.layers, a.width, a.vocab, a.batch, a.seq, a.sdpa), {}
    own = {p.untyped_storage().data_ptr() for p in model.model.parameters()}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    model.whole_step()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model.forward()
    loss.backward()
    weights, gradients, adam = model.held()
    blocks = [weights, sum(size for where, size in kept.items() if where not in own), gradients, adam]
    return [*blocks, torch.cuda.max_memory_allocated() if torch.cuda.is_available() else sum(blocks)]


def main():
    a = kit.options(__doc__, TABLE)
    torch = kit.package("torch")
    if a.width % 64 or (a.sdpa and not torch):
        kit.stop(f"--width 要是 64 的倍数（头宽 64），你填了 {a.width}" if a.width % 64 else "--sdpa 要 PyTorch：装上它，或去掉 --sdpa")
    n, b, s, h = 12 * a.layers * a.width**2 + 2 * a.vocab * a.width, a.batch, a.seq, a.width
    per_layer = (12 if torch else 10) * b * s * h + (0 if a.sdpa else b * (h // 64) * s * s)
    told = [n * a.bytes_per_param / 4, 4.0 * (a.layers * per_layer + b * s * (h + a.vocab)), n * a.bytes_per_param / 4, n * a.bytes_per_param / 2]
    rows = [*zip(("权重", "激活", "梯度", "Adam", "峰值"), [0.05] * 4 + [0.15], [*told, sum(told)], with_torch(a) if torch else with_numpy(a))]  # noqa: B905
    for name, _, p, m in rows:
        print(f"{name}：预测 {p / 1e6:.4g} MB，实测 {m / 1e6:.4g} MB（{m / p - 1:+.1%}）")
    lever = dict.fromkeys(("权重", "梯度", "Adam"), f"bytes_per_param={a.bytes_per_param:g}")
    kit.csv(["P2", name, "bytes", "MB", tolerance, lever.get(name, ""), p / 1e6, m / 1e6] for name, tolerance, p, m in rows)


if __name__ == "__main__":
    main()
