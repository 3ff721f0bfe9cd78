"""The twelve projects of chapter 24: what each is called and what to suspect when a measurement leaves its pass line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Project:
    """``worse`` and ``better``: where to look when reality is worse, or better, than the prediction."""

    title: str
    worse: str
    better: str


@dataclass(frozen=True)
class Lever:
    """An input that a prediction leans on; ``power`` +1: the prediction grows worse with it, −1: better, 0: no simple rule."""

    name: str
    unit: str
    power: int


PROJECTS = {
    "P1": Project("自己的 Roofline", "矩阵小就是启动开销，矩阵大就查频率、布局、TF32。", "规格书的数填低了，或样本只在缓存里跑。"),
    "P2": Project("显存账", "多出来的去找：分配器取整、没释放的激活、第一步才创建的优化器状态。", "少了的去找：已经释放的，或和别的张量共用的。"),
    "P3": Project("MFU", "模型小，卡在启动和逐元素操作：先开编译，再加 batch。", "峰值填低了：它是同一种精度、同样几个核的吗。"),
    "P4": Project("all-reduce 与 α–β", "进程比核多，测到的是抢核。", "消息小到全在缓存里。"),
    "P5": Project("流水线", "多出来的是排队和唤醒，段越短占得越多：把每段加长再测。", "段没有真的睡够，查计时。"),
    "P6": Project("decode 速度", "查带宽是不是在同样的线程数下测的，层是不是小到装进缓存又被挤出来。", "权重没有每步都从内存读：整个模型装进了缓存。"),
    "P7": Project("存档间隔", "磁盘有写缓存：短时快、长时慢，把文件加大再测。", "没等落盘就停了表，查 fsync。"),
    "P8": Project("数据管线", "跑得短，最后几批的尾巴占得多；也可能核不够分。", "预取的存货帮了忙：跑久一点再看。"),
    "C1": Project("64 张卡训 70B 的方案书", "方案书比重算的乐观：改方案，或写清凭什么。", "方案书比重算的保守：写清余量留给谁。"),
    "C2": Project("自己写 ring all-reduce", "链路之外还有开销：每步的同步、切块太小。", "两边量的不是同一件事：查根有没有真的等齐。"),
    "C3": Project("复现一张论文表", "印的数小于重算的：先查口径，再查是不是印错。", "印的数大于重算的：先查口径，再查是不是印错。"),
    "C4": Project("服务一个 7B", "到达率离饱和太近，排队把尾巴拉长：降一点再测。", "到达率没真打上去：查压测机自己是不是卡住了。"),
}

LEVERS = {
    "gb_s": Lever("带宽", "GB/s", -1),
    "mfu": Lever("MFU", "", -1),
    "gflop_s": Lever("算力", "GFLOP/s", -1),
    "stage_s": Lever("每段的时间 t_f + t_b", "s", 1),
    "bytes_per_param": Lever("每参数字节", "字节", 1),
    "act_bytes": Lever("每层留下的激活", "字节", 1),
    "disk_mb_s": Lever("写盘带宽", "MB/s", -1),
    "load_ms": Lever("取一批的时间", "ms", 1),
    "link_gb_s": Lever("链路带宽", "GB/s", -1),
    "step_ms": Lever("一步的时间", "ms", 1),
    "claim": Lever("印的数", "", 1),
}
