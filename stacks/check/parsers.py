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


def kubernetes_manifests(folder):
    import kubernetes_validate
    import yaml

    version, n, apart = kubernetes_validate.latest_version(), 0, 0
    for path in sorted(folder.glob("kubernetes/*.yaml")):
        for manifest in filter(None, yaml.safe_load_all(path.read_text())):
            if manifest["kind"] == "LeaderWorkerSet":
                # Its definition is not among the schemas; its pods are.
                template = manifest["spec"]["leaderWorkerTemplate"]
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": template["workerTemplate"]["spec"]}
                manifest, apart = pod, apart + 1
            kubernetes_validate.validate(manifest, version, strict=True)
            n += 1
    assert n > 0, folder
    print(f"kubernetes {version}: {n} manifests are taken, {apart} of them as the pods of a group")


def skypilot_services(folder):
    import sky
    import yaml
    from sky.utils import schemas

    paths = sorted(folder.glob("skypilot/*.yaml"))
    assert paths, folder
    for path in paths:
        config = yaml.safe_load(path.read_text())
        import jsonschema

        jsonschema.validate({k: v for k, v in config.items() if k != "service"}, schemas.get_task_schema())
        jsonschema.validate(config["service"], schemas.get_service_schema())
    print(f"skypilot {sky.__version__}: {len(paths)} services are taken")


folder = pathlib.Path(sys.argv[1])
for check in (
    megatron_layouts,
    lambda: deepspeed_configs(folder),
    lambda: kubernetes_manifests(folder),
    lambda: skypilot_services(folder),
):
    try:
        check()
    except ImportError as why:
        print(f"skipped: {why}")
