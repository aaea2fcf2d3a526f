"""Reads exported files with the targets' own parsers, as far as the packages are there; says which they were."""

import importlib.metadata
import json
import pathlib
import sys


def megatron_layouts():
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    # Strings of Megatron-LM's functional tests and of this project, with the layers of their stages as this project counts them.
    known = {
        "Et|(tt|)*6mL": [1, 2, 2, 2, 2, 2, 2, 0],
        "Et*7|t*7mL": [7, 7],
        "Et*2|(tt|)*5t|tmL": [2, 2, 2, 2, 2, 2, 1, 1],
        "Et*3|(tt|)*6tmL": [3, 2, 2, 2, 2, 2, 2, 1],
        "Et*11|t*12|t*12|t*11L": [11, 12, 12, 11],
    }
    for text, layers in known.items():
        stages = PipelineParallelLayerLayout.parse_str_to_list(text)
        found = [sum("decoder" in str(layer).lower() for layer in stage) for stage in stages]
        assert found == layers, (text, found, layers)
    print(f"megatron-core {importlib.metadata.version('megatron-core')}: {len(known)} layouts have the same stages")


class Replicas:
    """As many data-parallel ranks as the batch is for; without processes there is one."""

    def __init__(self, config):
        each = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"]
        self.n, rest = divmod(config["train_batch_size"], each)
        assert rest == 0, config

    def get_data_parallel_world_size(self):
        return self.n


def deepspeed_configs(folder):
    from deepspeed.runtime import config as module

    # No processes run: this one is the first.
    module.dist.get_rank = lambda *_: 0
    configs = sorted(folder.glob("**/ds_config.json"))
    for path in configs:
        config = json.loads(path.read_text())
        module.DeepSpeedConfig(config, mpu=Replicas(config))
    print(f"deepspeed {importlib.metadata.version('deepspeed')}: {len(configs)} configurations are taken")


for check in (megatron_layouts, lambda: deepspeed_configs(pathlib.Path(sys.argv[1]))):
    try:
        check()
    except ImportError as why:
        print(f"skipped: {why}")
