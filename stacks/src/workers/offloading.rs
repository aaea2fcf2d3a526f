//! Memory on the host that a service of KServe gives keys and values: `kvCacheOffloading`.
//!
//! Source: kserve/kserve `docs/samples/llmisvc/kv-cache-offloading`, `pkg/controller/v1alpha2/llmisvc` (the argument that its controller renders: vLLM's
//! `OffloadingConnector` with `cpu_bytes_to_use`), v0.20 below `workload`, v0.21 below `spec` too.

use input::diagnostic::{Code, Finding};

use crate::connectors::{CONFIG, TIERS};
use crate::yaml::Entry;

/// The section.
const SECTION: &str = "kvCacheOffloading";

/// Puts the argument that the controller renders behind others; what it does not say is told.
pub(super) fn with_offloading(own: &[Entry], args: &mut Vec<String>) -> Vec<Finding> {
    let Some(cpu) = own.iter().find(|entry| entry.path.ends_with(&[SECTION.to_owned(), "cpu".to_owned()])) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let is_given = args.iter().any(|word| word.trim_start_matches('-').replace('_', "-").starts_with(CONFIG));
    match bytes(&cpu.value).filter(|_| !is_given) {
        Some(bytes) => {
            let config = format!(
                "{{\"kv_connector\":\"OffloadingConnector\",\"kv_role\":\"kv_both\",\"kv_connector_extra_config\":{{\"cpu_bytes_to_use\":{bytes}}}}}"
            );
            args.extend([format!("--{CONFIG}"), config]);
        }
        None if is_given => {
            found.push(warning(cpu, format!("`{SECTION}` beside a connector of its own is not modelled")))
        }
        None => found.push(warning(cpu, format!("`cpu: {}` is no size of memory, and is left out", cpu.value))),
    }
    let disk = own.iter().find(|entry| entry.key() == "secondary" && entry.path.iter().any(|key| key == SECTION));
    found.extend(disk.map(|entry| warning(entry, "`secondary` tiers of keys and values are not modelled".to_owned())));
    found
}

fn warning(entry: &Entry, what: String) -> Finding {
    Finding::warning(Code::NotModelled, Some(entry.at.clone()), what).help(TIERS)
}

/// A quantity of Kubernetes as bytes: `10Gi`, `20G`, `5e9`.
fn bytes(quantity: &str) -> Option<u64> {
    const BINARY: f64 = 1024.0;
    let units = [("Ki", BINARY), ("Mi", BINARY.powi(2)), ("Gi", BINARY.powi(3)), ("Ti", BINARY.powi(4))];
    let decimal = [("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("", 1.0)];
    let of = |(unit, size): (&str, f64)| Some(quantity.strip_suffix(unit)?.parse::<f64>().ok()? * size);
    let found = units.into_iter().chain(decimal).find_map(of)?;
    (1.0..1e18).contains(&found).then(|| hw::whole(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{import_text, on};

    /// The form of the project's sample.
    const SERVICE: &str = "apiVersion: serving.kserve.io/v1alpha2\nkind: LLMInferenceService\nmetadata:\n  name: q\nspec:\n  model:\n    uri: hf://Qwen/Qwen3-8B\n    name: Qwen/Qwen3-8B\n  \
                           template:\n    containers:\n      - name: main\n        resources:\n          limits:\n            nvidia.com/gpu: \"1\"\n  workload:\n    kvCacheOffloading:\n      \
                           cpu: \"10Gi\"\n      evictionPolicy: lru\n      secondary:\n        - fileSystem:\n            emptyDir:\n              size: \"100Gi\"\n";

    #[test]
    fn memory_on_the_host_is_a_tier() {
        let machine = on("h100-sxm");
        let found = |text: &str| {
            let found = import_text(text, &machine);
            let told: Vec<String> =
                found.findings.into_iter().filter(|one| one.code == Code::NotModelled).map(|one| one.what).collect();
            (found.scenario, told.join("; "))
        };
        let (scenario, told) = found(SERVICE);
        assert!(scenario.contains("tiers = { host_gib = 10 }") && told.starts_with("`secondary`"), "{scenario} {told}");
        let above =
            SERVICE.replace("  workload:\n    kvCacheOffloading:\n      cpu", "  kvCacheOffloading:\n      cpu");
        assert!(found(&above).0.contains("tiers = { host_gib = 10 }"));
        let (scenario, told) = found(&SERVICE.replace("10Gi", "much"));
        assert!(!scenario.contains("tiers") && told.contains("`cpu: much`"), "{told}");
    }

    #[test]
    fn quantities_are_those_of_kubernetes() {
        for (text, expected) in [
            ("10Gi", Some(10 << 30)),
            ("20G", Some(20_000_000_000)),
            ("512Mi", Some(512 << 20)),
            ("5e9", Some(5_000_000_000)),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
        assert_eq!([bytes("-1Gi"), bytes("Gi"), bytes("0")], [None; 3]);
    }
}
