"""Times of PyTorch's kernels of training on the GPU that is here: products, grouped products, attention, and kernels bound by memory.

    python3 calibrate/torch/operators.py OUT [SECONDS]

OUT gets `operators.csv` (products of cuBLAS in 16 bits and in 8 bits with one scale, grouped products of CUTLASS, attention of cuDNN),
`operators-flash.csv` (attention of FlashAttention 2) and `operators-memory.csv`. The first two have the columns of SimuMax's tables, with the
kernel and the format besides. So `skrull-sim import OUT/operators.csv --format simumax` makes a profile of them. Attention is causal; `efficiency`
counts the full square. Products in 8 bits add up fast (`use_fast_accum`) and give 16 bits.

Every launch takes other operands than the last, so that caches hold none of them. Launches are captured as a graph where that works: then no
host is in between. A time is the median of several replays.
"""

import csv
import os
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

COLUMNS = (
    "gpu op kernel format stage batch groups m k n layout accumulate out_dtype seq_tokens heads kv_heads qk_head_dim v_head_dim "
    "qkv_contiguous peak_tflops_per_s efficiency time_ms"
).split()
MEMORY = "gpu kernel elements bytes rows width time_ms".split()
PEAK = 989.5
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BF16 = torch.bfloat16
FAR = 160 << 20
REPLAYS = 7


def gpu_name():
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"
    return next((word for word in ("H100", "H200", "B200", "A100") if word in name), name)


def sets_of(n_bytes):
    """How many sets of operands no cache holds together."""
    return max(2, min(24, FAR // max(n_bytes, 1) + 1))


def seconds(launches, in_graph=True):
    """Median seconds of one launch; `launches` are calls with different operands, made in turn."""
    if DEVICE.type != "cuda":
        for launch in launches[:2]:
            launch()
        return 1e-3
    for launch in launches[:2]:
        launch()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    launches[0]()
    end.record()
    torch.cuda.synchronize()
    once = max(begin.elapsed_time(end) / 1e3, 2e-6)
    n = max(len(launches), min(64, int(0.002 / once)))
    chain = [launches[i % len(launches)] for i in range(n)] if once < 0.05 else launches[:1]
    graph = captured(chain) if in_graph and once < 0.002 else None

    def whole():
        begin.record()
        if graph is not None:
            graph.replay()
        else:
            for launch in chain:
                launch()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3 / len(chain)

    whole()
    return statistics.median(whole() for _ in range(REPLAYS if once < 0.05 else 3))


def captured(chain):
    stream = torch.cuda.Stream()
    try:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for launch in chain[:2]:
                launch()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for launch in chain:
                launch()
        torch.cuda.synchronize()
        return graph
    except RuntimeError as error:
        print("no graph:", str(error).splitlines()[0][:100], flush=True)
        torch.cuda.synchronize()
        return None


def filled(*shape, dtype=BF16):
    return torch.randn(*shape, device=DEVICE, dtype=torch.float32 if dtype == torch.float8_e4m3fn else dtype).to(dtype)


class Table:
    def __init__(self, path, columns):
        is_new = not os.path.exists(path)
        self.file = open(path, "a", newline="")
        self.writer = csv.DictWriter(self.file, columns, restval="", lineterminator="\n")
        if is_new:
            self.writer.writeheader()
        self.columns = columns

    def add(self, flops=None, time_s=0.0, **cells):
        cells = {key: value for key, value in cells.items() if key in self.columns}
        if "efficiency" in self.columns:
            cells |= {"peak_tflops_per_s": PEAK, "efficiency": f"{flops / time_s / PEAK / 1e12:.6f}"}
        self.writer.writerow({"gpu": gpu_name(), "time_ms": f"{time_s * 1e3:.6f}", **cells})
        self.file.flush()


# Columns and inner dimension of the matrices of a layer and of heads: Llama 3 8B, 70B and 405B, Qwen2.5 0.5B, 7B and 32B, GPT-3 175B,
# DeepSeek-V3, Mixtral.
WIDTHS = [
    (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672),
    (1152, 896), (9728, 896), (896, 4864), (4608, 3584), (37888, 3584), (3584, 18944), (7168, 5120), (55296, 5120), (5120, 27648),
    (12288, 12288), (49152, 12288), (12288, 49152), (1536, 7168), (24576, 1536), (576, 7168), (7168, 16384), (4096, 7168), (7168, 2048),
    (128256, 4096), (1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584), (2560, 16384), (16384, 2048), (13312, 16384),
]
TOKENS = [512, 2048, 4096, 8192, 16384]


def shapes(until):
    """Tokens, columns and inner dimension of products, until time ends."""
    for tokens in TOKENS:
        for n, k in WIDTHS:
            if time.time() > until:
                return
            if tokens * n * k <= 4e12:
                yield tokens, n, k


def products(table, until):
    for tokens, n, k in shapes(until):
        # Sums of gradients in 32 bits are left out: PyTorch needs two kernels for them, Transformer Engine one.
        stages = [
            ("forward", "TN", lambda x, w, y: x @ w.t(), (tokens, k, n)),
            ("data gradient", "NN", lambda x, w, y: y @ w, (tokens, n, k)),
            ("weight gradient", "NT", lambda x, w, y: y.t() @ x, (n, tokens, k)),
        ]
        bytes_all = 2 * (tokens * k + n * k + tokens * n)
        operands = [(filled(tokens, k), filled(n, k), filled(tokens, n)) for _ in range(sets_of(bytes_all))]
        for stage, layout, call, (m, inner, columns) in stages:
            taken = seconds([lambda x=x, w=w, y=y: call(x, w, y) for x, w, y in operands])
            table.add(
                2.0 * m * inner * columns, taken, op="matmul", kernel="cublas", format="bf16", stage=stage, batch=1, m=m, k=inner,
                n=columns, layout=layout, accumulate=False, out_dtype="bf16",
            )
        del operands


def products_fp8(table, until):
    one = torch.ones((), device=DEVICE, dtype=torch.float32)
    for tokens, n, k in shapes(until):
        n_bytes = tokens * k + n * k + 2 * tokens * n
        operands = [
            (filled(tokens, k, dtype=torch.float8_e4m3fn), filled(n, k, dtype=torch.float8_e4m3fn))
            for _ in range(sets_of(n_bytes))
        ]
        launches = [
            lambda x=x, w=w: torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=BF16, use_fast_accum=True)
            for x, w in operands
        ]
        try:
            taken = seconds(launches)
        except RuntimeError as error:
            print("fp8", tokens, n, k, str(error).splitlines()[0][:120], flush=True)
            continue
        table.add(
            2.0 * tokens * n * k, taken, op="matmul", kernel="cublas", format="fp8", stage="forward", batch=1, m=tokens, k=k, n=n,
            layout="TN", accumulate=False, out_dtype="bf16",
        )
        del operands, launches


# Experts on a GPU, rows of each, columns and inner dimension: Qwen3 30B, Mixtral, DeepSeek-V3.
GROUPS = [
    (128, 512, 1536, 2048), (128, 512, 2048, 768), (16, 2048, 1536, 2048), (16, 2048, 2048, 768), (8, 1024, 28672, 4096),
    (8, 1024, 4096, 14336), (8, 4096, 28672, 4096), (8, 4096, 4096, 14336), (32, 1024, 4096, 7168), (32, 1024, 7168, 2048),
    (4, 4096, 4096, 7168), (4, 4096, 7168, 2048), (64, 256, 2816, 2048), (64, 256, 2048, 1408), (64, 64, 4096, 7168), (64, 64, 7168, 2048),
    (32, 256, 5760, 2880), (32, 256, 2880, 2880), (128, 128, 3072, 4096), (128, 128, 4096, 1536),
]


def grouped(table, until):
    for groups, rows, n, k in GROUPS:
        if time.time() > until:
            return
        offsets = torch.arange(rows, groups * rows + 1, rows, device=DEVICE, dtype=torch.int32)
        n_bytes = 2 * (groups * rows * (k + n) + groups * n * k)
        operands = [
            (filled(groups * rows, k), filled(groups, n, k), filled(groups * rows, n)) for _ in range(min(4, sets_of(n_bytes)))
        ]
        stages = [
            ("forward", lambda x, w, y: torch._grouped_mm(x, w.transpose(1, 2), offs=offsets)),
            ("data gradient", lambda x, w, y: torch._grouped_mm(y, w, offs=offsets)),
            ("weight gradient", lambda x, w, y: torch._grouped_mm(y.t(), x, offs=offsets)),
        ]
        for stage, call in stages:
            launches = [lambda x=x, w=w, y=y: call(x, w, y) for x, w, y in operands]
            try:
                taken = seconds(launches)
            except (RuntimeError, AttributeError) as error:
                print("grouped", stage, groups, rows, n, k, str(error).splitlines()[0][:120], flush=True)
                continue
            # The rows of the table are those of the forward pass whatever the stage, as in SimuMax's.
            table.add(
                2.0 * groups * rows * n * k, taken, op="group_matmul", kernel="cutlass", format="bf16", stage=stage, groups=groups, m=rows,
                k=k, n=n, accumulate=False, out_dtype="bf16",
            )
        del operands


# Heads, key-value heads, width of keys, of values.
HEADS = [(32, 8, 128, 128), (8, 1, 128, 128), (16, 16, 128, 128), (64, 8, 64, 64), (14, 2, 64, 64), (16, 16, 192, 128)]
LENGTHS = [2048, 4096, 8192, 16384, 32768, 65536]


def attention(table, backend, until):
    # Short ones of every width come first, so that no width is missing where time ends.
    for length in LENGTHS:
        for heads, kv_heads, wide, wide_v in HEADS:
            if time.time() > until:
                return
            if length * length * heads * wide > 2e13 or (wide == 192 and backend == SDPBackend.FLASH_ATTENTION):
                continue
            batch = 1
            n_bytes = 2 * length * (2 * heads * wide + 2 * kv_heads * wide)
            try:
                one_attention(table, backend, (batch, heads, kv_heads, wide, wide_v, length), min(4, sets_of(n_bytes)))
            except RuntimeError as error:
                print("attention", backend, heads, kv_heads, wide, length, str(error).splitlines()[0][:160], flush=True)


def one_attention(table, backend, shape, n_sets):
    batch, heads, kv_heads, wide, wide_v, length = shape
    aten = torch.ops.aten
    sets = []
    for _ in range(n_sets):
        # Tokens before heads, as projections leave them.
        q = filled(batch, length, heads, wide).transpose(1, 2)
        k = filled(batch, length, kv_heads, wide).transpose(1, 2)
        v = filled(batch, length, kv_heads, wide_v).transpose(1, 2)
        sets.append((q, k, v, filled(batch, length, heads, wide_v).transpose(1, 2)))

    # The kernels themselves: on the host they take less than through autograd.
    def forward(q, k, v):
        if backend == SDPBackend.CUDNN_ATTENTION:
            return aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True, False)
        return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False)

    def backward(q, k, v, grad, out):
        result, lse, cum_q, cum_k, max_q, max_k, seed, offset, _ = out
        if backend == SDPBackend.CUDNN_ATTENTION:
            return aten._scaled_dot_product_cudnn_attention_backward(
                grad, q, k, v, result, lse, seed, offset, None, cum_q, cum_k, max_q, max_k, 0.0, True
            )
        return aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, result, lse, cum_q, cum_k, max_q, max_k, 0.0, True, seed, offset
        )

    square = float(batch) * length * length * heads * (wide + wide_v)
    kernel = "cudnn" if backend == SDPBackend.CUDNN_ATTENTION else "flash"
    cells = dict(
        kernel=kernel, format="bf16", batch=batch, seq_tokens=length, heads=heads, kv_heads=kv_heads, qk_head_dim=wide, v_head_dim=wide_v,
        qkv_contiguous=True,
    )
    taken = seconds([lambda q=q, k=k, v=v: forward(q, k, v) for q, k, v, _ in sets], in_graph=False)
    table.add(2.0 * square, taken, op="sdp_fwd", stage="forward", **cells)
    outs = [forward(q, k, v) for q, k, v, _ in sets]
    launches = [lambda s=s, out=out: backward(*s, out) for s, out in zip(sets, outs)]
    taken = seconds(launches, in_graph=False)
    table.add(5.0 * square, taken, op="sdp_bwd", stage="backward", **cells)


def memory_bound(table, until):
    """Kernels that move bytes: what each reads and writes at least, and its time."""
    for rows in (2048, 8192, 32768):
        for wide in (4096, 8192):
            if time.time() > until:
                return
            numel = rows * wide
            n = sets_of(4 * numel)
            x = [filled(rows, wide) for _ in range(n)]
            weight = filled(wide)
            wider = [filled(rows, 2 * wide) for _ in range(n)]
            single = [torch.randn(rows, wide, device=DEVICE) for _ in range(n)]
            cases = [
                ("copy", 4, [lambda a=a: a.clone() for a in x]),
                ("add", 6, [lambda a=a, b=b: a + b for a, b in zip(x, x[1:] + x[:1])]),
                ("add in place", 6, [lambda a=a, b=b: a.add_(b, alpha=1e-3) for a, b in zip(x, x[1:] + x[:1])]),
                ("cast of 32 to 16 bits", 6, [lambda a=a: a.to(BF16) for a in single]),
                ("cast of 16 to 32 bits", 6, [lambda a=a: a.float() for a in x]),
                ("rms norm", 4, [lambda a=a: F.rms_norm(a, (wide,), weight) for a in x]),
                ("layer norm", 4, [lambda a=a: F.layer_norm(a, (wide,), weight, weight) for a in x]),
                ("silu", 4, [lambda a=a: F.silu(a) for a in x]),
                ("gelu", 4, [lambda a=a: F.gelu(a, approximate="tanh") for a in x]),
                ("silu and product", 10, [lambda a=a: F.silu(a[:, :wide]) * a[:, wide:] for a in wider]),
                ("sum of squares in 32 bits", 4, [lambda a=a: a.square().sum() for a in single]),
            ]
            for name, bytes_each, launches in cases:
                taken = seconds(launches)
                table.add(time_s=taken, kernel=name, elements=numel, bytes=bytes_each * numel, rows=rows, width=wide)
            del x, wider, single, cases


def optimizer(table):
    for numel in (1 << 24, 1 << 27, 1 << 29):
        parameter = torch.nn.Parameter(torch.randn(numel, device=DEVICE))
        parameter.grad = torch.randn(numel, device=DEVICE)
        for kind in ("fused", "foreach"):
            adam = torch.optim.AdamW([parameter], lr=1e-4, **{kind: True})
            adam.step()
            taken = seconds([adam.step])
            table.add(time_s=taken, kernel=f"adamw {kind}", elements=numel, bytes=28 * numel, rows=1, width=numel)


def loss(table):
    for rows, vocabulary in ((2048, 128256), (8192, 128256), (8192, 32000), (4096, 151936)):
        logits = [filled(rows, vocabulary).requires_grad_() for _ in range(2)]
        labels = torch.randint(0, vocabulary, (rows,), device=DEVICE)
        with torch.no_grad():
            taken = seconds([lambda a=a: F.cross_entropy(a.float(), labels) for a in logits])
        table.add(time_s=taken, kernel="loss in 32 bits, forward", elements=rows * vocabulary, bytes=0, rows=rows, width=vocabulary)

        def both(a):
            return torch.autograd.grad(F.cross_entropy(a.float(), labels), a)

        taken = seconds([lambda a=a: both(a) for a in logits])
        table.add(time_s=taken, kernel="loss in 32 bits, both", elements=rows * vocabulary, bytes=0, rows=rows, width=vocabulary)


def launches(table):
    """Host seconds of a small kernel: what PyTorch's dispatcher takes."""
    x = filled(1024)
    w = filled(64, 64)
    for name, call in (
        ("add", lambda: x + x),
        ("add in place", lambda: x.add_(1.0)),
        ("matmul", lambda: w @ w),
        ("linear", lambda: F.linear(w, w)),
        ("rms norm", lambda: F.rms_norm(w, (64,))),
        ("silu", lambda: F.silu(x)),
    ):
        with torch.no_grad():
            for _ in range(100):
                call()
            if DEVICE.type == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(1000):
                call()
            taken = (time.perf_counter() - begin) / 1000
            if DEVICE.type == "cuda":
                torch.cuda.synchronize()
        table.add(time_s=taken, kernel=f"host time of {name}", elements=0, bytes=0, rows=0, width=0)


def of_attention(out, until):
    table = Table(f"{out}/operators.csv", COLUMNS)
    now = time.time()
    attention(table, SDPBackend.CUDNN_ATTENTION, now + (until - now) / 2)
    attention(Table(f"{out}/operators-flash.csv", COLUMNS), SDPBackend.FLASH_ATTENTION, until)


def of_layers(out, until):
    table = Table(f"{out}/operators-memory.csv", MEMORY)
    launches(table)
    memory_bound(table, until)
    optimizer(table)
    loss(table)
    grouped(Table(f"{out}/operators.csv", COLUMNS), until)


# What one process measures, and the share of the time after which it ends. A kernel that fails leaves the others alone.
PARTS = {
    "attention": (0.35, of_attention),
    "layers": (0.55, of_layers),
    "products": (0.80, lambda out, until: products(Table(f"{out}/operators.csv", COLUMNS), until)),
    "products in 8 bits": (1.0, lambda out, until: products_fp8(Table(f"{out}/operators.csv", COLUMNS), until)),
}


def main():
    if sys.argv[1] == "--part":
        _, _, name, out, until = sys.argv
        torch.manual_seed(0)
        PARTS[name][1](out, float(until))
        return
    out = sys.argv[1]
    limit = float(sys.argv[2]) if len(sys.argv) > 2 else 90.0
    os.makedirs(out, exist_ok=True)
    begun = time.time()
    for name, (share, _) in PARTS.items():
        until = begun + limit * share
        command = [sys.executable, __file__, "--part", name, out, str(until)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=max(until - time.time(), 1) + 20)
            print(done.stdout, end="")
            if done.returncode:
                print("FAILED", name, "|".join(done.stderr.strip().splitlines()[-2:])[-300:])
        except subprocess.TimeoutExpired:
            print("stopped", name)
        print(f"{time.time() - begun:.0f} s: {name}", flush=True)


if __name__ == "__main__":
    main()
