//! Formats of weights as engines name them, and whether an engine loads a checkpoint by the method that its option asks for.
//!
//! A checkpoint that says a method is loaded by it. An option may name its kernels; another method is refused, and no weights are converted. Sources:
//! `_verify_quantization` and each `override_quantization_method` of vllm/config/model.py and model_executor/layers/quantization (vLLM 0.32; 0.11 is alike but for
//! its words), and of sglang/srt/configs/model_config.py and layers/quantization (SGLang 0.5.23, with `compatible_quantization_methods`).

use engine::model::of_checkpoint;
use input::diagnostic::Code;
use serde_json::Value;

use crate::Machine;
use crate::checkpoint::is_narrow;
use crate::flags::Flags;
use crate::serving::{Server, WIDE_KEYS};

/// Words that an engine takes over a checkpoint of a method, beside its own name; `*` stands for all of them.
const TAKEN: [(&str, &str, &str); 11] = [
    ("vllm", "awq", "auto_awq awq_marlin ipex marlin moe_wna16"),
    ("vllm", "gptq", "auto_gptq bitblas gptq_bitblas gptq_marlin gptq_marlin_24 marlin moe_wna16"),
    ("vllm", "fp8", "deepseek_v4_fp8"),
    // These two take their own method whatever is asked.
    ("vllm", "modelopt", "*"),
    ("vllm", "gpt_oss_mxfp4", "*"),
    ("vllm", "auto-round", "*"),
    ("sglang", "awq", "awq_marlin marlin moe_wna16"),
    ("sglang", "gptq", "gptq_marlin marlin moe_wna16"),
    ("sglang", "modelopt", "modelopt_fp8 modelopt_fp4 modelopt_mixed petit_nvfp4"),
    ("sglang", "compressed-tensors", "w8a8_int8 w8a8_fp8 auto-round-int8"),
    ("sglang", "mxfp8", "minimax_m3_nvfp4"),
];
/// Words by which weights of a method become others as they are loaded.
const CONVERTED: [(&str, &str, &str); 2] =
    [("sglang", "fp8", "modelopt_fp4 nvfp4_online quark_mxfp4"), ("sglang", "modelopt", "nvfp4_online quark_mxfp4")];
/// The kernels of a method for any checkpoint.
const FOR_ANY: &str = "humming";

/// Format of the weights behind an option: none where the checkpoint says its own, and where the engine refuses the option.
pub(crate) fn of_weights(server: &Server, flags: &mut Flags<'_>, machine: &Machine) -> Option<&'static str> {
    const NAME: &str = "quantization";
    let asked = flags.find(NAME)?.value().to_lowercase();
    let methods = methods(server, machine);
    if methods.is_empty() || ["auto", "none"].contains(&asked.as_str()) {
        return format(flags, NAME);
    }
    let is_own = methods.contains(&asked) || takes(&TAKEN, server, &methods, &asked) || asked == FOR_ANY;
    if takes(&CONVERTED, server, &methods, &asked) {
        flags.not_modelled(NAME, "weights are taken as the checkpoint has them, and not as they become");
    } else if !is_own {
        let what = format!(
            "`--{NAME} {asked}` over a checkpoint of `{}`: {} refuses a method that is not the checkpoint's",
            methods.join("` or `"),
            engine_name(server.engine)
        );
        let help = "leave the option out, or serve a checkpoint in 16 bits, whose weights it converts";
        flags.refuse(Code::WrongFlag, flags.at(NAME), what, help);
    }
    let _ = flags.text(NAME);
    None
}

/// Whether an engine's row of a table for one of some methods has a word.
fn takes(table: &[(&str, &str, &str)], server: &Server, methods: &[String], asked: &str) -> bool {
    let mut rows = table.iter().filter(|row| row.0 == server.engine && methods.iter().any(|method| method == row.1));
    rows.any(|row| row.2.split(' ').any(|word| word == "*" || word == asked))
}

fn engine_name(engine: &str) -> &str {
    if engine == "vllm" { "vLLM" } else { "SGLang" }
}

/// Methods that a checkpoint may have: that of its file, or those of releases with such a name; none of one in 16 bits, or where nothing is known.
fn methods(server: &Server, machine: &Machine) -> Vec<String> {
    if let Some(path) = &server.configuration {
        let stated = machine.configuration.as_deref().filter(|_| path.is_empty());
        return machine.beside(stated.unwrap_or(path)).and_then(of_file).into_iter().collect();
    }
    let path = server.model.as_deref().unwrap_or_default().to_lowercase();
    let Some(model) = of_checkpoint(&path).filter(is_narrow) else { return Vec::new() };
    let word = model.formats.experts.word();
    let found: &[&str] = match word {
        _ if path.starts_with("nvidia/") => &["modelopt"],
        _ if path.contains("awq") => &["awq", "compressed-tensors"],
        _ if path.contains("gptq") => &["gptq", "compressed-tensors"],
        "mxfp4" if path.contains("gpt-oss") => &["mxfp4", "gpt_oss_mxfp4"],
        "nvfp4" => &["modelopt", "compressed-tensors"],
        "fp8" | "fp8-block" => &["fp8", "compressed-tensors"],
        _ => return Vec::new(),
    };
    found.iter().map(|method| (*method).to_owned()).collect()
}

/// The method of a configuration, as `_parse_quant_hf_config` finds it.
fn of_file(text: &str) -> Option<String> {
    let config: Value = serde_json::from_str(text).ok()?;
    let of = |config: &Value| {
        let keys = ["quantization_config", "compression_config"].into_iter().find_map(|key| config.get(key))?;
        let method = keys.get("quant_method").and_then(Value::as_str).unwrap_or_default().to_lowercase();
        let producer = keys.get("producer").and_then(|producer| producer.get("name")).and_then(Value::as_str);
        let is_modelopt = method.starts_with("modelopt") || producer == Some("modelopt");
        Some(if is_modelopt {
            "modelopt".to_owned()
        } else {
            method.replace("compressed_tensors", "compressed-tensors")
        })
    };
    let method = of(&config).or_else(|| of(config.get("text_config")?)).filter(|method| !method.is_empty())?;
    let is_gpt_oss = config.get("model_type").and_then(Value::as_str) == Some("gpt_oss");
    Some(if is_gpt_oss && method == "mxfp4" { "gpt_oss_mxfp4".to_owned() } else { method })
}

/// The format of keys and values behind a flag: 16 bits are a format too, because checkpoints of ModelOpt say 8 bits by themselves.
pub(crate) fn format_of_keys(flags: &mut Flags<'_>) -> Option<&'static str> {
    const NAME: &str = "kv-cache-dtype";
    let is_wide =
        flags.find(NAME).is_some_and(|flag| ["bf16", "bfloat16"].contains(&flag.value().to_lowercase().as_str()));
    if is_wide { Some(WIDE_KEYS) } else { format(flags, NAME) }
}

/// Formats of checkpoints as engines name them.
pub(crate) fn format(flags: &mut Flags<'_>, name: &str) -> Option<&'static str> {
    let value = flags.text(name)?.to_lowercase();
    let found = match value.as_str() {
        "auto" | "none" | "bfloat16" | "float16" | "half" => return None,
        word if word.contains("nvfp4") || word.contains("modelopt_fp4") => "nvfp4",
        word if word.contains("mxfp4") => "mxfp4",
        word if word.contains("mxfp8") => "mxfp8",
        word if word.starts_with("fp8") && word.contains("block") => "fp8-block",
        // Beside weights of 4 bits (`w4afp8`) it is the format of activations.
        word if word.contains("fp8") && !word.contains("w4a") => "fp8",
        "int8_per_channel_weight_only" => "int8-weights",
        // Eight bits of weights and activations are whole numbers: `w8a8_int8`, `w8a8_sq_per_channel`.
        word if word == "int8" || word.contains("w8a8") => "int8",
        word if word.contains("awq") || word.contains("gptq") || word.contains("w4a16") => "int4",
        word if word.contains("bitsandbytes") => {
            let why = "weights are taken as the model's name says; `--set model.weights=int4` takes 4.2 bits of its 4.5 and multiplies without unpacking, so it is too fast";
            flags.not_modelled(name, why);
            return None;
        }
        _ => {
            flags.not_modelled(name, "weights are taken as the model's name says");
            return None;
        }
    };
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{import_text, on, said};

    const VLLM: &str = "vllm serve";
    const SGLANG: &str = "python -m sglang.launch_server --model-path";

    /// Whether an option over a checkpoint of a method, in a file beside the script, is refused.
    fn refused(server: &str, method: &str, asked: &str) -> bool {
        let config = format!(r#"{{ "model_type": "llama", "quantization_config": {{ "quant_method": "{method}" }} }}"#);
        let machine = Machine { files: vec![("./m/config.json".to_owned(), config)], ..on("h100-sxm") };
        let found = import_text(&format!("{server} ./m --quantization {asked}"), &machine);
        assert!(!found.scenario.contains("weights ="), "{method} {asked}: {}", found.scenario);
        said(&found).iter().any(|what| what.contains("refuses a method"))
    }

    /// The tables of `_verify_quantization`: a method, what it is loaded by, and what is refused.
    #[test]
    fn options_over_a_checkpoint_of_another_method_are_refused() {
        for (method, taken, refuses) in [
            ("awq", &["awq", "awq_marlin"][..], &["fp8", "gptq", "compressed-tensors", "mxfp8"][..]),
            ("gptq", &["gptq", "gptq_marlin", "moe_wna16"], &["fp8", "awq", "awq_marlin"]),
            ("compressed-tensors", &["compressed-tensors"], &["fp8", "awq", "gptq_marlin"]),
            ("compressed_tensors", &["compressed-tensors"], &["awq"]),
            ("fp8", &["fp8"], &["awq", "mxfp8", "compressed-tensors"]),
        ] {
            for server in [VLLM, SGLANG] {
                assert!(taken.iter().all(|asked| !refused(server, method, asked)), "{server} {method}");
                assert!(refuses.iter().all(|asked| refused(server, method, asked)), "{server} {method}");
            }
        }
        // vLLM takes ModelOpt's method whatever is asked, and SGLang kernels of it alone.
        assert!(!refused(VLLM, "modelopt", "fp8") && refused(SGLANG, "modelopt", "fp8"));
        assert!(
            !refused(SGLANG, "compressed-tensors", "w8a8_int8") && refused(VLLM, "compressed-tensors", "w8a8_int8")
        );
    }

    #[test]
    fn checkpoints_that_are_known_by_their_names_keep_their_formats() {
        let of = |text: &str| import_text(text, &on("h100-sxm"));
        for (name, asked, is_refused) in [
            ("Qwen/Qwen3-8B-AWQ", "fp8", true),
            ("Qwen/Qwen3-8B-AWQ", "awq_marlin", false),
            ("Qwen/Qwen3-8B-FP8", "awq", true),
            ("Qwen/Qwen3-8B-FP8", "fp8", false),
            ("openai/gpt-oss-20b", "fp8", false),
            ("Qwen/Qwen3-8B", "fp8", false),
        ] {
            let found = of(&format!("{VLLM} {name} --quantization {asked}"));
            let is = said(&found).iter().any(|what| what.contains("refuses a method"));
            let is_converted = found.scenario.contains("weights = \"fp8\"");
            assert_eq!((is, is_converted), (is_refused, name == "Qwen/Qwen3-8B"), "{name} {asked}: {}", found.scenario);
        }
        // SGLang makes the experts of FP8 checkpoints narrower, which is said.
        let found = of(&format!("{SGLANG} Qwen/Qwen3-8B-FP8 --quantization modelopt_fp4"));
        assert!(!found.scenario.contains("weights =") && said(&found).iter().any(|what| what.contains("not modelled")));
    }

    /// The configuration that an override names is the checkpoint's, whatever the script serves.
    #[test]
    fn the_configuration_of_an_override_says_the_method() {
        let of = |method: &str, asked: &str| {
            let keys = if method.is_empty() {
                String::new()
            } else {
                format!(r#", "quantization_config": {{ "quant_method": "{method}" }}"#)
            };
            let config = format!(r#"{{ "model_type": "llama"{keys} }}"#);
            let machine = crate::example::h100(&["model.config=own.json"]);
            let text = format!("{VLLM} Qwen/Qwen3-8B --quantization {asked}");
            let machine = machine.with_files(&text, &|name| (name == "own.json").then(|| config.clone()));
            let found = import_text(&text, &machine);
            (said(&found).iter().any(|what| what.contains("refuses a method")), found.scenario.contains("weights ="))
        };
        assert_eq!(of("awq", "fp8"), (true, false));
        assert_eq!(of("awq", "awq"), (false, false));
        assert_eq!(of("fp8", "fp8"), (false, false));
        assert_eq!(of("", "fp8"), (false, true));
    }
}
