//! How nodes and pods of Kubernetes say their GPUs, by the device plugin of each maker.
//!
//! Source: NVIDIA/k8s-device-plugin with its feature discovery; ROCm/k8s-device-plugin with its node labeller.

use hw::Maker;

/// A device plugin.
pub(crate) struct Plugin {
    /// Whose cards it offers.
    pub(crate) maker: Maker,
    /// What pods ask for.
    pub(crate) resource: &'static str,
    /// The label by which nodes say their GPU.
    pub(crate) label: &'static str,
}

/// Those of all makers; NVIDIA's stands for cards that the catalogue lacks.
pub(crate) const PLUGINS: [Plugin; 2] = [
    Plugin { maker: Maker::Nvidia, resource: "nvidia.com/gpu", label: "nvidia.com/gpu.product" },
    Plugin { maker: Maker::Amd, resource: "amd.com/gpu", label: "amd.com/gpu.product-name" },
];

/// That of a card.
pub(crate) fn of(gpu: &str) -> &'static Plugin {
    let maker = hw::catalog::maker(gpu);
    PLUGINS.iter().find(|plugin| Some(plugin.maker) == maker).unwrap_or(&PLUGINS[0])
}

/// Whether a key is a label by which nodes say their GPU.
pub(crate) fn is_label(key: &str) -> bool {
    PLUGINS.iter().any(|plugin| plugin.label == key)
}

/// Whether a key is a resource that is GPUs.
pub(crate) fn is_resource(key: &str) -> bool {
    PLUGINS.iter().any(|plugin| plugin.resource == key)
}
