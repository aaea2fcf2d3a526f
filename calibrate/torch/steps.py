"""Training steps of PyTorch on one GPU, with peaks of memory: decoders under FSDP2, as torchtitan builds and wraps them.

    python3 calibrate/torch/steps.py OUT [SECONDS]

OUT gets `steps.csv`, one row for every setting: `skrull-sim score OUT/steps.csv` reads it. A row is written as soon as it is measured, so a run
that is stopped keeps what it has. A process of its own runs every setting: what one leaves in memory does not disturb the next.
`trace-NAME.json.gz` are traces of the profiler, for `skrull-sim validate --measured`.

The rank shards its parameters with nobody, so gathers and reductions are copies on the GPU. Parameters, gradients and optimizer states have 32
bits, layers compute in bf16, attention is PyTorch's FlashAttention.
"""

import csv
import json
import os
import statistics
import subprocess
import sys
import time

COLUMNS = (
    "row model layers gpu gpus precision compile async_tp activation_checkpointing seq_tokens local_batch_seqs global_batch_seqs "
    "fsdp_gpus tp_gpus pp_stages cp_gpus ep_gpus schedule optimizer step_time_s step_p10_s step_p90_s forward_s backward_s optimizer_s "
    "tokens_per_s_per_gpu peak_mem_gib peak_allocated_gib peak_active_gib static_gib forward_peak_gib backward_peak_gib optimizer_peak_gib "
    "host_bound torch flags"
).split()
GIB = float(1 << 30)

# Hidden size, heads, key-value heads, width of a head, width of the MLP, vocabulary, layers, norms of queries and keys, shared head.
MODELS = {
    "Llama 3.1 8B": (4096, 32, 8, 128, 14336, 128256, 32, False, False),
    "Llama 3.2 1B": (2048, 32, 8, 64, 8192, 128256, 16, False, True),
    "Llama 3.2 3B": (3072, 24, 8, 128, 8192, 128256, 28, False, True),
    "Qwen3 0.6B": (1024, 16, 8, 128, 3072, 151936, 28, True, True),
    "Qwen3 1.7B": (2048, 16, 8, 128, 6144, 151936, 28, True, True),
    "Llama 3.1 70B": (8192, 64, 8, 128, 28672, 128256, 80, False, False),
}

# Model, layers, tokens of a sequence, sequences, checkpointing, compiled, optimizer.
SETTINGS = [
    ("Llama 3.1 8B", 8, 8192, 1, "none", 0, "fused"),
    ("Llama 3.1 8B", 8, 8192, 1, "full", 0, "fused"),
    ("Llama 3.1 8B", 8, 8192, 1, "selective op", 0, "fused"),
    ("Llama 3.1 8B", 8, 8192, 1, "selective layer", 0, "foreach"),
    ("Llama 3.1 8B", 4, 4096, 4, "none", 0, "foreach"),
    ("Llama 3.1 8B", 4, 32768, 1, "full", 0, "fused"),
    ("Llama 3.1 8B", 8, 8192, 1, "none", 1, "fused"),
    ("Llama 3.1 8B", 8, 8192, 1, "selective op", 1, "fused"),
    ("Llama 3.1 8B", 8, 8192, 1, "full", 1, "fused"),
    ("Llama 3.2 1B", 16, 8192, 1, "none", 0, "fused"),
    ("Llama 3.2 1B", 16, 8192, 1, "full", 1, "fused"),
    ("Llama 3.2 3B", 28, 4096, 1, "full", 0, "fused"),
    ("Llama 3.2 3B", 28, 4096, 1, "selective op", 1, "fused"),
    ("Qwen3 1.7B", 28, 4096, 1, "full", 0, "fused"),
    ("Qwen3 1.7B", 28, 4096, 1, "none", 1, "foreach"),
    ("Qwen3 0.6B", 28, 512, 1, "none", 0, "fused"),
    ("Qwen3 0.6B", 28, 16384, 1, "full", 0, "fused"),
    ("Llama 3.1 70B", 2, 4096, 2, "none", 0, "fused"),
    ("Llama 3.1 70B", 2, 8192, 1, "full", 1, "fused"),
]
WARM, STEPS = 4, 8
TRACED = (0, 7)


def build(setting):
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.nn.attention import SDPBackend, sdpa_kernel

    hidden, heads, kv_heads, wide, inner, vocabulary, _, normed, shared = MODELS[setting[0]]
    n_layers, length = setting[1], setting[2]

    def rotated(x, table):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * table[None, : x.shape[1], None, :]).flatten(3).type_as(x)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.wq = nn.Linear(hidden, heads * wide, bias=False)
            self.wk = nn.Linear(hidden, kv_heads * wide, bias=False)
            self.wv = nn.Linear(hidden, kv_heads * wide, bias=False)
            self.wo = nn.Linear(heads * wide, hidden, bias=False)
            self.norms = nn.ModuleList([nn.RMSNorm(wide), nn.RMSNorm(wide)]) if normed else None

        def forward(self, x, table):
            batch, tokens, _ = x.shape
            q = self.wq(x).view(batch, tokens, heads, wide)
            k = self.wk(x).view(batch, tokens, kv_heads, wide)
            v = self.wv(x).view(batch, tokens, kv_heads, wide)
            if self.norms is not None:
                q, k = self.norms[0](q), self.norms[1](k)
            q, k = rotated(q, table), rotated(k, table)
            groups = heads // kv_heads
            k, v = ((a[:, :, :, None, :].expand(-1, -1, -1, groups, -1).reshape(batch, tokens, heads, wide)) for a in (k, v))
            # Also where a layer is computed again, the kernel must be the same.
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
            return self.wo(out.transpose(1, 2).contiguous().view(batch, tokens, -1))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention()
            self.w1 = nn.Linear(hidden, inner, bias=False)
            self.w2 = nn.Linear(inner, hidden, bias=False)
            self.w3 = nn.Linear(hidden, inner, bias=False)
            self.attention_norm, self.ffn_norm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)

        def forward(self, x, table):
            h = x + self.attention(self.attention_norm(x), table)
            y = self.ffn_norm(h)
            return h + self.w2(F.silu(self.w1(y)) * self.w3(y))

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok_embeddings = nn.Embedding(vocabulary, hidden)
            self.layers = nn.ModuleList([Layer() for _ in range(n_layers)])
            self.norm = nn.RMSNorm(hidden)
            self.output = nn.Linear(hidden, vocabulary, bias=False)
            if shared:
                self.output.weight = self.tok_embeddings.weight
            rates = 1.0 / (500000.0 ** (torch.arange(0, wide, 2).float() / wide))
            angles = torch.outer(torch.arange(length).float(), rates)
            self.register_buffer("table", torch.polar(torch.ones_like(angles), angles), persistent=False)

        def forward(self, tokens):
            h = self.tok_embeddings(tokens)
            for layer in self.layers:
                h = layer(h, self.table)
            return self.output(self.norm(h))

    return Decoder, shared


def checkpointed(layer, how, index):
    import torch
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    if how == "none" or (how == "selective layer" and index % 2 == 1):
        return layer
    if how in ("full", "selective layer"):
        return checkpoint_wrapper(layer, preserve_rng_state=False)
    aten = torch.ops.aten
    saved = {
        aten.mm.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_flash_attention.default,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
    }

    def contexts():
        counts = {}

        def policy(context, op, *args, **kwargs):
            key = context.is_recompute
            if op == aten.mm.default:
                counts[key] = counts.get(key, 0) + 1
            # Every second product is computed again, as torchtitan has it.
            is_saved = op in saved and not (op == aten.mm.default and counts[key] % 2 == 0)
            return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    return checkpoint_wrapper(layer, context_fn=contexts, preserve_rng_state=False)


def one(index, out):
    """Measures a setting in this process, and prints its row as JSON."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    setting = SETTINGS[index]
    name, n_layers, length, batch, how, is_compiled, kind = setting
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(29500 + index))
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda:0"))
    mesh = init_device_mesh("cuda", (1,))
    torch.manual_seed(0)
    decoder, shared = build(setting)
    with torch.device("meta"):
        model = decoder()
    for number, layer in enumerate(list(model.layers)):
        layer = checkpointed(layer, how, number)
        if is_compiled:
            layer.compile(fullgraph=True)
        model.layers[number] = layer
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for number, layer in enumerate(model.layers):
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=number < n_layers - 1)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cuda")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.02)
        wide = MODELS[name][3]
        rates = 1.0 / (500000.0 ** (torch.arange(0, wide, 2, device="cuda").float() / wide))
        angles = torch.outer(torch.arange(length, device="cuda").float(), rates)
        model.table = torch.polar(torch.ones_like(angles), angles)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, **{kind: True})
    tokens = torch.randint(0, MODELS[name][5], (batch, length + 1), device="cuda")
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def loss_of(logits):
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))

    if is_compiled:
        loss_of = torch.compile(loss_of)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
    memory = torch.cuda

    def step(peaks=None):
        def peak(phase):
            if peaks is not None:
                torch.cuda.synchronize()
                peaks[phase] = memory.max_memory_allocated()
                memory.reset_peak_memory_stats()

        events[0].record()
        loss = loss_of(model(inputs))
        events[1].record()
        peak("forward")
        loss.backward()
        events[2].record()
        peak("backward")
        total = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        del total
        optimizer.step()
        optimizer.zero_grad()
        events[3].record()
        peak("optimizer")

    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    static = memory.memory_allocated()
    memory.reset_peak_memory_stats()
    times, parts = [], []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        sent = time.perf_counter() - begin
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        parts.append([a.elapsed_time(b) / 1e3 for a, b in zip(events, events[1:])] + [sent / times[-1]])
    stats = memory.memory_stats()
    allocated, active, reserved = (stats[f"{key}_bytes.all.peak"] for key in ("allocated", "active", "reserved"))
    # Steps that follow each other without a wait, as a training loop has them.
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    in_a_row = (time.perf_counter() - begin) / STEPS
    peaks = {}
    memory.reset_peak_memory_stats()
    step(peaks)
    if index in TRACED:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=False) as profiler:
            step()
            torch.cuda.synchronize()
        profiler.export_chrome_trace(f"{out}/trace-{index}.json.gz")
    times.sort()
    middle = [statistics.median(part[i] for part in parts) for i in range(4)]
    gpu = torch.cuda.get_device_name()
    row = {
        "row": index, "model": name, "layers": n_layers, "gpu": "H200" if "H200" in gpu else "H100" if "H100" in gpu else gpu, "gpus": 1,
        "precision": "bf16", "compile": is_compiled, "async_tp": 0, "activation_checkpointing": how, "seq_tokens": length,
        "local_batch_seqs": batch, "global_batch_seqs": batch, "fsdp_gpus": 1, "tp_gpus": 1, "pp_stages": 1, "cp_gpus": 1, "ep_gpus": 1,
        "optimizer": kind, "step_time_s": f"{in_a_row:.5f}", "step_p10_s": f"{times[0]:.5f}", "step_p90_s": f"{times[-1]:.5f}",
        "forward_s": f"{middle[0]:.5f}", "backward_s": f"{middle[1]:.5f}", "optimizer_s": f"{middle[2]:.5f}",
        "tokens_per_s_per_gpu": round(batch * length / in_a_row), "peak_mem_gib": f"{reserved / GIB:.3f}",
        "peak_allocated_gib": f"{allocated / GIB:.3f}", "peak_active_gib": f"{active / GIB:.3f}", "static_gib": f"{static / GIB:.3f}",
        **{f"{phase}_peak_gib": f"{value / GIB:.3f}" for phase, value in peaks.items()},
        "host_bound": int(middle[3] > 0.9), "torch": torch.__version__, "flags": "tied" if shared else "",
    }
    print("ROW " + json.dumps(row), flush=True)
    dist.destroy_process_group()


def main():
    if len(sys.argv) > 3 and sys.argv[1] == "--one":
        return one(int(sys.argv[2]), sys.argv[3])
    out, limit = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 240.0
    os.makedirs(out, exist_ok=True)
    begun = time.time()
    with open(f"{out}/steps.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        chosen = os.environ.get("SETTINGS")
        indices = [int(word) for word in chosen.split()] if chosen else range(len(SETTINGS))
        for index, setting in ((index, SETTINGS[index]) for index in indices):
            left = limit - (time.time() - begun)
            if left < 15:
                print("no time for", setting, flush=True)
                continue
            try:
                done = subprocess.run(
                    [sys.executable, __file__, "--one", str(index), out], capture_output=True, text=True, timeout=min(left, 120)
                )
            except subprocess.TimeoutExpired:
                print("stopped", setting, flush=True)
                continue
            rows = [line[4:] for line in done.stdout.splitlines() if line.startswith("ROW ")]
            if not rows:
                last = [line for line in done.stderr.splitlines() if line.strip()][-3:]
                print("FAILED", setting, " | ".join(last)[-500:], flush=True)
                continue
            row = json.loads(rows[0])
            writer.writerow(row)
            file.flush()
            print(
                f"{time.time() - begun:.0f} s", *setting, row["step_time_s"], row["forward_s"], row["backward_s"], row["optimizer_s"],
                row["peak_mem_gib"], row["peak_allocated_gib"], row["static_gib"], flush=True,
            )


if __name__ == "__main__":
    main()
