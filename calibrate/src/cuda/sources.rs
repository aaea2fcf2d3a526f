//! Sources of the CUDA kernels, embedded: one file holds several kernels, and shares `common.cuh` with the others.

const COMMON: &str = include_str!("../../kernels/common.cuh");

/// File, text, kernels.
static SOURCES: &[(&str, &str, &[&str])] = &[
    (
        "attention_forward.cu",
        include_str!("../../kernels/attention_forward.cu"),
        &["attention_forward_128", "attention_forward_64"],
    ),
    (
        "attention_backward.cu",
        include_str!("../../kernels/attention_backward.cu"),
        &["attention_backward_delta", "attention_backward_finish", "attention_backward_128", "attention_backward_64"],
    ),
    (
        "decode.cu",
        include_str!("../../kernels/decode.cu"),
        &["decode_128", "decode_64", "decode_paged_128", "decode_paged_64", "decode_merge"],
    ),
    (
        "elementwise.cu",
        include_str!("../../kernels/elementwise.cu"),
        &[
            "residual_rms_norm_forward",
            "residual_rms_norm_backward",
            "rms_norm_weight_gradient",
            "swiglu_forward",
            "swiglu_backward",
            "add",
            "adam_step",
        ],
    ),
    ("gather.cu", include_str!("../../kernels/gather.cu"), &["gather_rows", "gather_rows_cached"]),
    ("lsh.cu", include_str!("../../kernels/lsh.cu"), &["lsh_hash", "lsh_insert", "lsh_add", "lsh_mean", "lsh_restore"]),
    ("moe.cu", include_str!("../../kernels/moe.cu"), &["moe_permute", "moe_combine", "moe_combine_backward"]),
    ("spmm.cu", include_str!("../../kernels/spmm.cu"), &["spmm_8", "spmm_16", "spmm_32", "spmm_reduce"]),
    (
        "vertical_slash.cu",
        include_str!("../../kernels/vertical_slash.cu"),
        &["vertical_slash_128", "vertical_slash_64"],
    ),
    // Host time that no kernel hides, as the device sees it; random operands; a look at results.
    ("tools.cu", include_str!("../../kernels/tools.cu"), &["spin", "random_bf16", "random_fp8", "count_not_finite"]),
];

/// File and whole text of a kernel.
///
/// # Panics
/// When no source has it, which a test holds.
pub fn of_kernel(kernel: &str) -> (&'static str, String) {
    let (file, text, _) = SOURCES.iter().find(|(_, _, kernels)| kernels.contains(&kernel)).expect("a known kernel");
    (file, text.replace("#include \"common.cuh\"", &COMMON.replace("#pragma once", "")))
}

/// Kernels of a file.
pub fn kernels_of(file: &str) -> &'static [&'static str] {
    SOURCES.iter().find(|(known, _, _)| *known == file).map_or(&[], |(_, _, kernels)| *kernels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_is_embedded_and_has_the_kernels_that_are_listed() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .expect("the sources")
            .map(|entry| entry.expect("a file").file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".cu"))
            .collect();
        files.sort();
        let mut known: Vec<&str> = SOURCES.iter().map(|(file, _, _)| *file).collect();
        known.sort_unstable();
        assert_eq!(files, known);
        for (file, text, kernels) in SOURCES {
            // A kernel is defined by name, or by a macro that takes the name first.
            let n = text.matches("SKRULL_KERNEL").count();
            assert!(
                n > 0
                    && kernels
                        .iter()
                        .all(|kernel| text.contains(&format!("{kernel}(")) || text.contains(&format!("({kernel},"))),
                "{file}"
            );
            assert!(!of_kernel(kernels[0]).1.contains("#include"), "{file}");
        }
    }
}
