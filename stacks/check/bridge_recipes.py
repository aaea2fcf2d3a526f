"""Makes `stacks/tables/bridge_recipes.tsv`: runs the recipes of a checkout of Megatron Bridge with stand-ins for all packages but its own recipes.

`python3 stacks/check/bridge_recipes.py CHECKOUT COMMIT >stacks/tables/bridge_recipes.tsv`. A recipe is a function that sets fields, so that nothing of
what it calls besides has to work.
"""

import importlib.abc
import importlib.machinery
import pathlib
import re
import sys
import types

ROOT, COMMIT = pathlib.Path(sys.argv[1]) / "src", sys.argv[2]
OWN = re.compile(r"megatron\.bridge\.(recipes|training\.(mixed_precision|comm_overlap|flex_dispatcher_backend))(\.|$)")
STOOD_IN = {"megatron", "torch", "transformer_engine", "transformers", "nvidia_resiliency_ext"}
FILES = ["llama/llama3", "llama/h100/llama3", "qwen/qwen3", "qwen/h100/qwen3", "qwen/qwen3_moe", "qwen/h100/qwen3_moe", "deepseek/deepseek_v3", "deepseek/h100/deepseek_v3"]
FORMATS = {"tensorwise": "bf16_with_fp8_current_scaling_mixed", "blockwise": "bf16_with_fp8_subchannel_scaling_mixed", "mxfp8": "bf16_with_mxfp8_mixed"}
LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


class Any:
    """A value that nobody set: false, and whatever is asked of it is another one. Fields that are set are kept."""

    def __init__(self, *_, **fields):
        self.__dict__.update(fields)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Named(name, self)

    def __call__(self, *words, **fields):
        # The checkpoint that a model is made of is handed on.
        made = Any(**fields)
        own = [word for word in words if isinstance(word, str)]
        made.checkpoint_ = own[0] if own else vars(vars(self).get("of_", self)).get("checkpoint_")
        return made

    def __bool__(self):
        return False

    def __float__(self):
        return 0.0

    __int__ = lambda self: 0
    __iter__ = lambda self: iter(())
    __or__ = __ror__ = lambda self, _: self
    __gt__ = __lt__ = lambda self, _: False
    __getitem__ = lambda self, _: self
    __mro_entries__ = lambda self, _: (Any,)


class Named(Any):
    def __init__(self, name, of):
        self.__dict__.update(name_=name, of_=of)


class StandIn(types.ModuleType):
    __getattr__ = Any.__getattr__


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in STOOD_IN and not OWN.match(name):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = StandIn(spec.name)
        module.__path__ = [str(ROOT / spec.name.replace(".", "/"))]
        return module

    def exec_module(self, module):
        pass


def said(config, section, field):
    """A field as an override writes it; nothing where a recipe leaves it or turns it off."""
    value = vars(getattr(config, section)).get(field) if getattr(config, section) is not None else None
    if isinstance(value, Named):
        value = {"bfloat16": "bf16", "float16": "fp16"}.get(value.name_)
    if field == "pipeline_model_parallel_layout" and value:
        value = "|".join("".join(LETTERS[layer] for layer in stage) for stage in value)
    if value in (None, False, "none") or isinstance(value, Any) or value == []:
        return None
    written = "[" + ",".join(value) + "]" if isinstance(value, list) else str(value).lower() if value is True else value
    return f"{section}.{field}={written}"


def overrides(config):
    model = ["tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout"]
    model += ["context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel", "mtp_num_layers"]
    model += ["account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "moe_token_dispatcher_type", "moe_shared_expert_overlap"]
    model += ["recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules", "cuda_graph_impl", "cuda_graph_scope"]
    model += ["cross_entropy_loss_fusion", "cross_entropy_fusion_impl", "use_transformer_engine_op_fuser"]
    words = [said(config, "model", field) for field in model if field != "cuda_graph_scope" or said(config, "model", "cuda_graph_impl")]
    words += [said(config, "dataset", "seq_length"), said(config, "train", "global_batch_size"), said(config, "train", "micro_batch_size")]
    words.append(said(config, "ddp", "use_distributed_optimizer"))
    for field in ["overlap_grad_reduce", "overlap_param_gather"]:
        # `CommOverlapConfig.setup` turns on what nothing turns off, whatever `ddp` says.
        if config.comm_overlap is None:
            words.append(said(config, "ddp", field))
        elif getattr(config.comm_overlap, field) is not False:
            words.append(f"comm_overlap.{field}=true")
    words += [said(config, "comm_overlap", field) for field in ["tp_comm_overlap", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute"]]
    fields = ["use_precision_aware_optimizer", "main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"]
    words += [said(config, "optimizer", field) for field in fields]
    mixed = config.mixed_precision
    if not isinstance(mixed, str):
        # It overwrites what `ddp` says of the same.
        words.append(None if mixed.grad_reduce_in_fp32 else "mixed_precision.grad_reduce_in_fp32=false")
        words.append("mixed_precision=" + ("bf16_with_nvfp4_mixed" if mixed.fp4 else FORMATS[mixed.fp8_recipe]) if mixed.fp4 or mixed.fp8 else None)
        words.append("mixed_precision.fp8_param_gather=true" if mixed.fp8_param_gather or mixed.fp4_param_gather else None)
    return " ".join(word for word in words if word and not (word.endswith("_size=1") and ".expert_tensor" not in word and "batch" not in word))


sys.meta_path.insert(0, Finder())
sys.path.insert(0, str(ROOT))
print("# Recipes of Megatron Bridge for pretraining, as overrides: names, checkpoint, what they set beside it (tabs between them).")
print(f"# source: NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/recipes @ {COMMIT}; made by stacks/check/bridge_recipes.py")
rows = {}
for file in FILES:
    module = importlib.import_module("megatron.bridge.recipes." + file.replace("/", "."))
    for name, make in vars(module).items():
        if "_pretrain" in name and name.endswith("_config") and not name.startswith("_") and "deterministic" not in name:
            rows.setdefault(make, []).append(name)
for names, config in sorted(((sorted(names), make()) for make, names in rows.items()), key=lambda row: row[0]):
    print(f"{' '.join(names)}\t{config.model.checkpoint_}\t{overrides(config)}")
