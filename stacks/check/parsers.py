"""Reads exported files with the targets' own parsers, as far as the packages are there; says which they were."""

import importlib.metadata
import json
import pathlib
import sys
import urllib.error
import urllib.request

# Schemas that no package has, by their commits.
SCHEMAS = {
    "leaderworkersets.yaml": "kubernetes-sigs/lws/060ab4da17eea1f0865fcbd3236bb1075e2cea32/config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
    "dynamographdeployments.yaml": "ai-dynamo/dynamo/df7deed0d81bb2ad53dcb6ee4230631d5a9cd7e1/deploy/operator/config/crd/bases/nvidia.com_dynamographdeployments.yaml",
    "llm-d-values.json": "llm-d-incubation/llm-d-modelservice/3051935eb5a49f6df21cd6aeb5e4f05b98799262/charts/llm-d-modelservice/values.schema.json",
}


def schema(folder, name):
    """A schema from its file, or from where it is published. What it does not name is refused."""
    import yaml

    path = folder / "schemas" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with urllib.request.urlopen(f"https://raw.githubusercontent.com/{SCHEMAS[name]}", timeout=60) as answer:
                path.write_bytes(answer.read())
        except (urllib.error.URLError, OSError) as why:
            raise ImportError(f"{name}: {why}") from why
    return strict(yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def strict(node, name=""):
    if isinstance(node, list):
        return [strict(part) for part in node]
    if not isinstance(node, dict):
        return node
    node = {key: strict(part, key) for key, part in node.items()}
    # Labels are anybody's.
    is_open = name in ("labels", "annotations") or node.get("x-kubernetes-preserve-unknown-fields") or isinstance(node.get("additionalProperties"), dict)
    if isinstance(node.get("properties"), dict) and node["properties"] and not is_open:
        node["additionalProperties"] = False
    return node


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

    version, n = kubernetes_validate.latest_version(), 0
    for path in sorted(folder.glob("**/kubernetes/*.yaml")):
        for manifest in filter(None, yaml.safe_load_all(path.read_text())):
            if manifest["kind"] == "LeaderWorkerSet":
                # Its definition is not among the schemas; its pods are.
                template = manifest["spec"]["leaderWorkerTemplate"]
                manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": template["workerTemplate"]["spec"]}
            kubernetes_validate.validate(manifest, version, strict=True)
            n += 1
    assert n > 0, folder
    print(f"kubernetes {version}: {n} manifests are taken")


def leader_worker_sets(folder):
    import jsonschema
    import yaml

    versions = schema(folder, "leaderworkersets.yaml")["spec"]["versions"]
    wanted = {version["name"]: version["schema"]["openAPIV3Schema"] for version in versions}
    manifests = [m for path in sorted(folder.glob("**/kubernetes/*.yaml")) for m in yaml.safe_load_all(path.read_text()) if m]
    sets = [manifest for manifest in manifests if manifest["kind"] == "LeaderWorkerSet"]
    assert sets, folder
    for manifest in sets:
        wanted["v1"]["properties"]["metadata"] = {}
        jsonschema.validate(manifest, wanted["v1"])
    print(f"LeaderWorkerSet v1: {len(sets)} groups of pods are taken")


def dynamo_graphs(folder):
    import jsonschema
    import yaml

    versions = schema(folder, "dynamographdeployments.yaml")["spec"]["versions"]
    stored = next(version for version in versions if version["storage"])
    wanted = stored["schema"]["openAPIV3Schema"]
    wanted["properties"]["metadata"] = {}
    checker = jsonschema.Draft202012Validator(wanted)
    paths = sorted(folder.glob("**/dynamo/*.yaml"))
    assert paths, folder
    for path in paths:
        graph = yaml.safe_load(path.read_text())
        assert graph["apiVersion"] == f"nvidia.com/{stored['name']}", path
        checker.validate(graph)
        names = [component["name"].lower() for component in graph["spec"]["components"]]
        # What its definition says in rules, not in keys.
        assert len(names) == len(set(names)), path
    print(f"DynamoGraphDeployment {stored['name']}: {len(paths)} graphs are taken")


def llm_d_values(folder):
    import jsonschema
    import yaml

    wanted, paths = schema(folder, "llm-d-values.json"), sorted(folder.glob("**/llm-d/*-values.yaml"))
    assert paths, folder
    for path in paths:
        jsonschema.validate(yaml.safe_load(path.read_text()), wanted)
    print(f"llm-d-modelservice: {len(paths)} values are taken")


def skypilot_services(folder):
    import sky
    import yaml
    from sky.utils import schemas

    paths = sorted(folder.glob("**/skypilot/*.yaml"))
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
    lambda: leader_worker_sets(folder),
    lambda: dynamo_graphs(folder),
    lambda: llm_d_values(folder),
    lambda: skypilot_services(folder),
):
    try:
        check()
    except ImportError as why:
        print(f"skipped: {why}")
