//! Connectors of keys and values: those that join roles of a split fleet, and those that keep prefixes outside of the device.
//!
//! Source: vllm-project/vllm `vllm/distributed/kv_transfer/kv_connector/factory.py`; LMCache's configuration (`max_local_cpu_size` is of one GPU's process, in
//! GiB); `kv_offloading_size` of vLLM's `vllm/config/cache.py` (GiB of all tensor ranks).

use input::diagnostic::Code;
use serde_json::Value;

use crate::environment::{self, Variable};
use crate::flags::Flags;
use crate::serving::Server;

/// Connectors that join roles and do no more, by a part of their names.
const JOINING: [&str; 6] = ["Nixl", "nixl", "P2pNccl", "Mooncake", "none", "null"];
/// Parts of names of connectors that keep keys and values outside of the device, also among several.
const OFFLOADING: [&str; 7] = ["Dynamo", "kvbm", "LMCache", "lmcache", "Offload", "Store", "FlexKV"];

/// Whether a text names a connector that does more than join roles.
pub(crate) fn is_offloading(text: &str) -> bool {
    let offloads = OFFLOADING.iter().any(|mark| text.contains(mark));
    offloads || !JOINING.iter().any(|mark| text.contains(mark))
}

/// What to write for memory outside of the device.
pub(crate) const TIERS: &str = "keys and values are taken to stay on the device: `engine.tiers = { host_gib = … }` has room on the host, `remote_gib` and \
                                `remote_gb_per_s` in it a store of the fleet";

/// The option that names a connector of vLLM.
pub(crate) const CONFIG: &str = "kv-transfer-config";

/// Reads where prefixes of a vLLM go that leave the device: host memory of a known size is a tier, anything else is told.
pub(crate) fn of_vllm(server: &mut Server, flags: &mut Flags<'_>, variables: &[Variable]) {
    let Some(text) = flags.find(CONFIG).map(crate::flags::Flag::value) else { return offloaded(server, flags) };
    let config: Value = serde_json::from_str(&text).unwrap_or_default();
    let names = named(&config);
    let role = config["kv_role"].as_str().unwrap_or("kv_both");
    // A text that is not whole, as one that only a shell knows, has no name; what it does beside roles is not known.
    if !names.iter().any(|name| is_offloading(name)) {
        return offloaded(server, flags);
    }
    match host_gib(&config, server, variables) {
        Some(gib) if flags.is("no-enable-prefix-caching") => {
            let what = format!(
                "the {gib} GiB on the host of `{}` are not modelled without vLLM's own prefix cache",
                names.join(", ")
            );
            let help =
                format!("`--set engine.prefix_cache=true --set 'engine.tiers={{host_gib={gib}}}'` is the nearest");
            flags.warn(Code::NotModelled, flags.at(CONFIG), what, help);
        }
        Some(gib) => tier(server, gib, "--kv-transfer-config"),
        None => {
            let what = format!("the connector `{}` is not modelled", names.join(", "));
            flags.warn(Code::NotModelled, flags.at(CONFIG), what, TIERS);
        }
    }
    // One that joins roles as well is told with the roles.
    if role == "kv_both" {
        flags.given.retain(|flag| flag.name != CONFIG);
    }
}

/// Names of the connector, and of those among several.
fn named(config: &Value) -> Vec<String> {
    let inside = inside(config);
    let own = config["kv_connector"].as_str().filter(|name| inside.is_empty() || !name.contains("Multi"));
    let inside = inside.iter().filter_map(|one| one["kv_connector"].as_str());
    own.into_iter().chain(inside).map(str::to_owned).collect()
}

/// Connectors inside of one that has several (`multi_connector.py`): each with a configuration of its own.
fn inside(config: &Value) -> &[Value] {
    config["kv_connector_extra_config"]["connectors"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Host memory of a replica that a connector is given, or those among several.
fn host_gib(config: &Value, server: &Server, variables: &[Variable]) -> Option<f64> {
    let processes = hw::real(server.tp.saturating_mul(server.pp)) * engines(server);
    let of_one = |one: &Value| {
        let extra = &one["kv_connector_extra_config"];
        let bytes = extra["cpu_bytes_to_use"].as_f64().map(|bytes| bytes * engines(server) / hw::GIB);
        bytes.or_else(|| Some(extra["lmcache.max_local_cpu_size"].as_f64()? * processes))
    };
    let of_variable = || environment::value(variables, "LMCACHE_MAX_LOCAL_CPU_SIZE")?.parse::<f64>().ok();
    let all = inside(config).iter().chain([config]).filter_map(of_one).reduce(|sum, one| sum + one);
    all.or_else(|| of_variable().map(|gib| gib * processes)).filter(|gib| *gib > 0.0)
}

/// Engines of a replica: ranks of data-parallel attention are engines of their own.
fn engines(server: &Server) -> f64 {
    hw::real(if server.ep.is_some() { server.dp } else { 1 })
}

/// `--kv-offloading-size`.
fn offloaded(server: &mut Server, flags: &mut Flags<'_>) {
    const SIZE: &str = "kv-offloading-size";
    let Some(gib) = flags.number(SIZE).filter(|gib| *gib > 0.0) else { return };
    if flags.is("no-enable-prefix-caching") {
        return flags.not_modelled(SIZE, "without a cache of prefixes nothing is kept on the host");
    }
    let gib = gib * engines(server);
    tier(server, gib, "--kv-offloading-size");
}

fn tier(server: &mut Server, gib: f64, flag: &str) {
    server.key("tiers", format!("{{ host_gib = {gib} }}"), flag);
}

#[cfg(test)]
mod tests {
    use crate::example::{import_text, on};
    use input::diagnostic::Code;

    fn found(text: &str) -> (String, Vec<(Code, String)>) {
        let found = import_text(text, &on("h100-sxm"));
        let words = found.findings.into_iter().filter(|one| one.code != Code::MissingFlag);
        (found.scenario, words.map(|one| (one.code, one.what + "; " + &one.help.unwrap_or_default())).collect())
    }

    #[test]
    fn a_connector_that_keeps_prefixes_is_a_tier_or_told_as_one() {
        let with = |config: &str| found(&format!("vllm serve llama-3-8b -tp 2 --kv-transfer-config '{config}'\n"));
        let (_, told) = with("{\"kv_connector\":\"LMCacheConnectorV1\",\"kv_role\":\"kv_both\"}");
        let [(Code::NotModelled, words)] = &told[..] else { panic!("{told:?}") };
        assert!(
            words.contains("LMCacheConnectorV1") && words.contains("host_gib") && !words.contains("two groups"),
            "{words}"
        );
        let (scenario, told) = with(
            "{\"kv_connector\":\"OffloadingConnector\",\"kv_role\":\"kv_both\",\"kv_connector_extra_config\":{\"cpu_bytes_to_use\":10737418240}}",
        );
        assert!(scenario.contains("tiers = { host_gib = 10 }") && told.is_empty(), "{scenario} {told:?}");
        let (scenario, told) = with(
            "{\"kv_connector\":\"MultiConnector\",\"kv_role\":\"kv_both\",\"kv_connector_extra_config\":{\"connectors\":[{\"kv_connector\":\"NixlConnector\",\
             \"kv_role\":\"kv_both\"},{\"kv_connector\":\"OffloadingConnector\",\"kv_role\":\"kv_both\",\"kv_connector_extra_config\":{\"cpu_bytes_to_use\":214748364800}}]}}",
        );
        assert!(scenario.contains("tiers = { host_gib = 200 }") && told.is_empty(), "{scenario} {told:?}");
        // Roles need both commands.
        let (_, told) = with("{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_producer\"}");
        assert!(told[0].1.contains("two groups"), "{told:?}");
    }

    #[test]
    fn room_of_lmcache_is_of_every_gpu_and_that_of_an_option_of_all() {
        let config = "--kv-transfer-config '{\"kv_connector\":\"LMCacheConnectorV1\",\"kv_role\":\"kv_both\"}'";
        let (scenario, told) = found(&format!("LMCACHE_MAX_LOCAL_CPU_SIZE=20 vllm serve llama-3-8b -tp 2 {config}\n"));
        assert!(scenario.contains("tiers = { host_gib = 40 }") && told.is_empty(), "{scenario} {told:?}");
        let (scenario, told) =
            found("vllm serve llama-3-8b -tp 2 --kv-offloading-backend native --kv-offloading-size 30\n");
        assert!(scenario.contains("tiers = { host_gib = 30 }") && told.is_empty(), "{scenario} {told:?}");
    }

    #[test]
    fn a_split_fleet_tells_of_its_memory_on_the_host() {
        let server = |role: &str| {
            format!(
                "vllm serve llama-3-8b --kv-transfer-config '{{\"kv_connector\":\"MultiConnector\",\"kv_role\":\"{role}\",\"kv_connector_extra_config\":\
                 {{\"connectors\":[{{\"kv_connector\":\"NixlConnector\"}},{{\"kv_connector\":\"LMCacheConnectorV1\"}}]}}}}'\n"
            )
        };
        let (scenario, told) = found(&format!("{}{}", server("kv_producer"), server("kv_consumer")));
        assert!(scenario.contains("role = \"prefill\"") && scenario.contains("role = \"decode\""), "{scenario}");
        assert!(
            told.iter().all(|(_, words)| words.contains("NixlConnector, LMCacheConnectorV1")) && told.len() == 2,
            "{told:?}"
        );
    }

    /// The production stack's example turns vLLM's own cache off beside LMCache.
    #[test]
    fn memory_on_the_host_without_a_cache_of_prefixes_is_told_with_its_size() {
        let config = "--kv-transfer-config '{\"kv_connector\":\"LMCacheConnectorV1\",\"kv_role\":\"kv_both\"}'";
        let script =
            format!("LMCACHE_MAX_LOCAL_CPU_SIZE=20 vllm serve llama-3-8b --no-enable-prefix-caching {config}\n");
        let (scenario, told) = found(&script);
        assert!(!scenario.contains("tiers") && told.len() == 1, "{scenario} {told:?}");
        let words = &told[0].1;
        assert!(words.contains("20 GiB") && words.contains("engine.prefix_cache=true"), "{words}");
    }
}
