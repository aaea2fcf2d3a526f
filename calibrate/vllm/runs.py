"""Serving runs of the vLLM that is installed here, on one GPU, measured by its own client: weights are random, so no checkpoint is needed.

    python3 calibrate/vllm/runs.py OUT TOKENIZER [MODEL...]

TOKENIZER is a folder with a `tokenizer.json`. OUT gets `runs.csv`, one row for every run, with the columns that `skrull-sim score` reads and
the engine's own times behind them. A row is written as soon as it is measured, so a run that is stopped keeps what it has. OUT also gets a
file with requests one by one for every run (`vllm bench serve --save-detailed`), for `skrull-sim validate --measured`, and the server's log.

The load is a number of requests in flight. Lengths are fixed, ends of text are ignored, prefixes are not shared. A server warms up on three
lengths of prompts before the first run that counts.

Settings, from the environment:

    SECONDS_MODEL   time for one model, its start included (default: 240); what does not fit is left out and named
    FLAGS           more flags of `vllm serve`
"""

import argparse
import asyncio
import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from datetime import datetime, timezone
from pathlib import Path

PORT = 8321
SERVER = f"http://127.0.0.1:{PORT}"

# Requests for each in flight, as `skrull-sim score` plays them.
REQUESTS = 4
# Tokens of a prompt, of an answer, requests in flight. One in flight: time to the first token by length, and of a token by context.
SETTINGS = [(length, 32, 1) for length in (32, 512, 1024, 2048, 4096, 8192, 16384)]
SETTINGS += [(1024, 256, 4), (1024, 256, 16), (1024, 256, 64), (8192, 256, 4), (8192, 256, 16), (1024, 256, 256), (8192, 256, 64)]

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "max_position_embeddings": 131072, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
}
QWEN3 = {
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "hidden_act": "silu",
    "max_position_embeddings": 40960, "tie_word_embeddings": False, "attention_bias": False,
}
# Path of the checkpoint, format of products, format of experts, config.
MODELS = {
    "llama-8b": ("meta-llama/Llama-3.1-8B-Instruct", "", "", LLAMA_8B),
    "llama-8b-fp8": ("nvidia/Llama-3.1-8B-Instruct-FP8", "fp8", "fp8", {
        **LLAMA_8B,
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "ignore": ["lm_head"]},
    }),
    "qwen3-32b": ("Qwen/Qwen3-32B", "", "", {
        **QWEN3, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25600,
        "num_hidden_layers": 64, "num_attention_heads": 64,
    }),
    "qwen3-30b-a3b": ("Qwen/Qwen3-30B-A3B", "", "", {
        **QWEN3, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    }),
    "gpt-oss-120b": ("openai/gpt-oss-120b", "nvfp4", "nvfp4", {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088, "num_local_experts": 128,
        "num_experts_per_tok": 4, "experts_per_token": 4, "sliding_window": 128, "attention_bias": True, "hidden_act": "silu", "swiglu_limit": 7.0,
        "rms_norm_eps": 1e-5, "rope_theta": 150000, "tie_word_embeddings": False, "max_position_embeddings": 131072, "initial_context_length": 4096,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 4096,
        },
        "layer_types": ["sliding_attention", "full_attention"] * 18,
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
        },
    }),
}

# vLLM leaves whole numbers as memory was, which are weights of four bits. So its plugin fills them, and floats of eight bits too: 0.001, which it
# draws up to, is 0 in them. Scales are powers of two near 2^-7.
PLUGIN = '''
import torch
from vllm.model_executor.model_loader import dummy_loader

first = dummy_loader.initialize_dummy_weights


def fill(model, *args, **kwargs):
    first(model, *args, **kwargs)
    for name, param in model.state_dict().items():
        if param.device.type == "meta" or param.numel() < 4096:
            continue
        if param.dtype == torch.uint8:
            param.random_(119, 122) if "scale" in name else param.random_(0, 256)
        elif torch.is_floating_point(param) and torch.finfo(param.dtype).bits == 8:
            for rows in param.data.view(-1).split(1 << 28):
                rows.copy_(torch.empty(rows.shape, dtype=torch.float16, device=rows.device).uniform_(-1, 1))


def register():
    dummy_loader.initialize_dummy_weights = fill
'''

COLUMNS = (
    "id silicon_data_source backend backend_version model_path system precision mode isl osl gemm_quant_mode moe_quant_mode batch_size tp_size "
    "pp_size attention_dp_size moe_tp_size moe_ep_size silicon_ttft_ms silicon_tpot_ms requests ttft_p50_ms ttft_p99_ms tpot_p50_ms itl_p50_ms "
    "engine_queue_ms engine_prefill_ms engine_decode_ms engine_ttft_ms duration_s flags"
).split()
# Sums that the server keeps, and the columns that hold their means.
SUMS = {
    "engine_queue_ms": "vllm:request_queue_time_seconds",
    "engine_prefill_ms": "vllm:request_prefill_time_seconds",
    "engine_decode_ms": "vllm:request_decode_time_seconds",
    "engine_ttft_ms": "vllm:time_to_first_token_seconds",
}


def write_model(folder, tokenizer, config):
    """A checkpoint without weights. Its vocabulary is filled up to that of the model with words that no text has."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 0, **config}
    (folder / "config.json").write_text(json.dumps(config))
    if "quantization_config" in config and config["quantization_config"]["quant_method"] == "modelopt":
        quantization = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
        (folder / "hf_quant_config.json").write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": quantization}))
    text = json.loads((tokenizer / "tokenizer.json").read_text())
    words = text["model"]["vocab"]
    for index in range(len(words), config["vocab_size"]):
        words[f"~~{index}~~"] = index
    (folder / "tokenizer.json").write_text(json.dumps(text))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>", "model_max_length": 131072}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


def write_plugin(folder):
    """The plugin, as an installed package has one."""
    about = folder / "filled-1.0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (folder / "filled.py").write_text(PLUGIN)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: filled\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\nfilled = filled:register\n")


def start_server(folder, log):
    flags = ["--no-enable-prefix-caching", "--load-format", "dummy", "--max-model-len", "20480"] + os.environ.get("FLAGS", "").split()
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder), "--host", "127.0.0.1", "--port", str(PORT)] + flags
    server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    return server, flags


def is_up():
    try:
        return urllib.request.urlopen(f"{SERVER}/health", timeout=2).status == 200
    except OSError:
        return False


def sums():
    """Sums and counts of the server so far, by metric."""
    text = urllib.request.urlopen(f"{SERVER}/metrics", timeout=10).read().decode()
    found = {}
    for name, value in re.findall(r"^(\S+?)\{[^}]*\} (\S+)$", text, re.MULTILINE):
        if name.endswith(("_sum", "_count")):
            found[name] = found.get(name, 0.0) + float(value)
    return found


def client(folder, setting, path):
    """One run of vLLM's client; its results."""
    from vllm.benchmarks import serve

    prompt, answer, in_flight = setting
    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    words = (
        f"--backend openai --base-url {SERVER} --endpoint /v1/completions --model {folder} --dataset-name random --random-input-len {prompt} "
        f"--random-output-len {answer} --num-prompts {REQUESTS * in_flight} --max-concurrency {in_flight} --ignore-eos --percentile-metrics ttft,tpot,itl,e2el "
        f"--metric-percentiles 50,90,99 --save-result --save-detailed --result-dir {path.parent} --result-filename {path.name} --seed {prompt + in_flight} "
        f"--temperature 0 --disable-tqdm --ready-check-timeout-sec 0"
    ).split()
    return asyncio.run(serve.main_async(parser.parse_args(words)))


def measure(name, folder, out, flags, until):
    import torch
    import vllm

    checkpoint, products, experts, _ = MODELS[name]
    gpu = next((word.lower() for word in ("H100", "H200", "B200", "A100") if word in torch.cuda.get_device_name()), "gpu")
    rows = out / "runs.csv"
    is_new = not rows.exists()
    for warm in ((64, 8, 4), (2048, 8, 2), (8192, 8, 2)):
        client(folder, warm, out / "warm.json")
    with rows.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if is_new:
            writer.writeheader()
        for setting in SETTINGS:
            prompt, answer, in_flight = setting
            run = f"{name}_{prompt}x{answer}_c{in_flight}"
            if time.time() > until:
                print(f"left out: {run}", flush=True)
                continue
            before, began = sums(), time.time()
            result = client(folder, setting, out / f"{run}.json")
            after = sums()
            row = {
                "id": f"{name}_{gpu}_{prompt}x{answer}_c{in_flight}",
                "silicon_data_source": f"vllm bench serve; silicon_concurrency={in_flight}; measured={datetime.now(timezone.utc):%Y-%m-%d}",
                "backend": "vllm", "backend_version": vllm.__version__, "model_path": checkpoint, "system": f"{gpu}_sxm",
                "precision": products, "mode": "agg", "isl": prompt, "osl": answer, "gemm_quant_mode": products, "moe_quant_mode": experts,
                "batch_size": in_flight, "tp_size": 1, "pp_size": 1, "attention_dp_size": 1, "moe_tp_size": 1, "moe_ep_size": 1,
                "silicon_ttft_ms": result["mean_ttft_ms"], "silicon_tpot_ms": result["mean_tpot_ms"], "requests": REQUESTS * in_flight,
                "ttft_p50_ms": result["median_ttft_ms"], "ttft_p99_ms": result["p99_ttft_ms"], "tpot_p50_ms": result["median_tpot_ms"],
                "itl_p50_ms": result["median_itl_ms"], "duration_s": result["duration"], "flags": " ".join(flags),
            }
            for column, metric in SUMS.items():
                n, seconds = (after.get(f"{metric}_{end}", 0.0) - before.get(f"{metric}_{end}", 0.0) for end in ("count", "sum"))
                row[column] = 1e3 * seconds / n if n else ""
            writer.writerow({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
            file.flush()
            print(f"{run}: TTFT {row['silicon_ttft_ms']:.2f} ms, TPOT {row['silicon_tpot_ms']:.3f} ms, {time.time() - began:.1f} s", flush=True)


def run_model(name, tokenizer, out):
    until = time.time() + float(os.environ.get("SECONDS_MODEL", 240))
    folder = Path("/tmp/vllm-models") / name
    write_model(folder, tokenizer, MODELS[name][3])
    with (out / f"server-{name}.log").open("w") as log:
        server, flags = start_server(folder, log)
        try:
            began = time.time()
            while not is_up():
                if server.poll() is not None or time.time() > until:
                    raise RuntimeError(f"no server after {time.time() - began:.0f} s")
                time.sleep(1)
            print(f"{name}: up after {time.time() - began:.0f} s", flush=True)
            measure(name, folder, out, flags, until)
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            time.sleep(3)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    out, tokenizer = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    plugins = Path("/tmp/vllm-plugins")
    write_plugin(plugins)
    os.environ["PYTHONPATH"] = f"{plugins}:{os.environ.get('PYTHONPATH', '')}"
    failed = 0
    for name in sys.argv[3:] or MODELS:
        try:
            run_model(name, tokenizer, out)
        except Exception as error:
            failed += 1
            print(f"{name}: {error}", flush=True)
            log = (out / f"server-{name}.log").read_text(errors="replace").splitlines()
            print("\n".join(line[:300] for line in log if "Error" in line or "error" in line)[-3000:])
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
