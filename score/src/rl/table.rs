//! Tables of measured steps of reinforcement learning and of transfers of weights, by their headers.

use rl::cycle::Placement;

use super::recipe::Recipe;
use super::row::{Asked, Measured, Row};
use super::step::Stated;
use super::transfer::Transfer;
use crate::reason::Reason;
use crate::table::{Cells, Fault, Table, has_columns};
use crate::training::row::Label;
use crate::training::setting::{Degrees, one_card};

/// Columns without which nothing can be said of a step.
const STEPS: [&str; 11] = [
    "row",
    "source",
    "model",
    "gpu",
    "gpus",
    "placement",
    "off_policy",
    "responses_per_step",
    "mean_response_tokens",
    "step_s",
    "recipe",
];
/// Columns that tell a table of steps.
const OF_STEPS: [&str; 2] = ["off_policy", "mean_response_tokens"];
/// Columns without which nothing can be said of a transfer.
const TRANSFERS: [&str; 8] = ["row", "source", "model", "gpu", "gpus_train", "gpus_rollout", "method", "sync_s_min"];
/// Columns that tell a table of transfers.
const OF_TRANSFERS: [&str; 2] = ["sync_s_min", "sync_s_max"];

/// What a source says of a row whose tokens per second and time of a step do not fit each other.
const DISAGREES: &str = "tokens_and_step_time_disagree";

/// Tables that are known, each with the columns that tell it.
pub fn known_tables() -> [String; 2] {
    [
        format!("steps of reinforcement learning ({})", OF_STEPS.join(", ")),
        format!("transfers of weights ({})", OF_TRANSFERS.join(", ")),
    ]
}

/// The rows of a table; `None` where its header is of no such table.
///
/// # Errors
/// Every fault of the file.
pub fn read(text: &str) -> Option<Result<Vec<Row>, Vec<Fault>>> {
    if has_columns(text, &OF_STEPS) {
        return Some(Table::read(text, &STEPS).and_then(|table| steps(&table)));
    }
    let is_of_transfers = has_columns(text, &OF_TRANSFERS);
    is_of_transfers.then(|| Table::read(text, &TRANSFERS).and_then(|table| table.read_rows(transfer)))
}

/// Steps. Tokens of a prompt follow from what a row prints, so a row that contradicts itself takes what other rows of its model have in the mean.
fn steps(table: &Table) -> Result<Vec<Row>, Vec<Fault>> {
    let lines = table.read_rows(Line::read)?;
    let prompts = |model: &str| {
        let same = lines.iter().filter(|line| line.label.model == model && !line.disagrees);
        let found: Vec<f64> = same.filter_map(|line| line.prompt).collect();
        crate::errors::mean(&found)
    };
    Ok(lines.iter().map(|line| line.row(prompts(&line.label.model))).collect())
}

/// A line of a table of steps.
struct Line {
    label: Label,
    degrees: Degrees,
    gpus: [u32; 2],
    generator_tp: Option<u32>,
    memory_ratio: Option<f64>,
    checkpoints: bool,
    /// Prompts, and answers to each.
    batch: Option<[u32; 2]>,
    prompt: Option<f64>,
    limit: Option<u32>,
    mean: Option<f64>,
    placement: Placement,
    off_policy: Option<u32>,
    recipe: String,
    step_s: Option<f64>,
    disagrees: bool,
}

impl Line {
    fn read(cells: &mut Cells<'_>) -> Self {
        let all = cells.positive("gpus");
        let gpus = ["gpus_train", "gpus_rollout"].map(|column| cells.count(column).unwrap_or(all));
        let [prompts, answers] = ["prompts_per_step", "responses_per_prompt"].map(|column| cells.count(column));
        let mut degree = |column: &str| cells.count(column).unwrap_or(1).max(1);
        let [tp, pp, cp, printed_ep] = ["train_tp", "train_pp", "train_cp", "train_ep"].map(&mut degree);
        let ep = recipe_ep(cells.word("flags")).unwrap_or(printed_ep);
        let degrees = Degrees { tp, pp, cp, ep, dp: gpus[0] / (tp * pp * cp), chunks: 1, expert_tp: 1 };
        let generator_tp = cells.count("gen_tp").filter(|tp| *tp > 0);
        let placement = placement(cells);
        let mut line = Self {
            label: Label::default(),
            degrees,
            gpus,
            generator_tp,
            memory_ratio: cells.positive_number("rollout_gpu_memory_fraction"),
            checkpoints: cells.flag("activation_checkpointing"),
            batch: prompts.zip(answers).map(|(prompts, answers)| [prompts, answers]),
            prompt: cells.positive_number("implied_prompt_tokens"),
            limit: cells.count("max_response_tokens"),
            mean: cells.positive_number("mean_response_tokens"),
            placement,
            off_policy: cells.word("off_policy").split(' ').next().and_then(|word| word.parse().ok()),
            recipe: cells.word("recipe").to_owned(),
            step_s: cells.positive_number("step_s"),
            disagrees: cells.word("flags").contains(DISAGREES),
        };
        line.label = line.label(cells);
        line
    }

    fn label(&self, cells: &Cells<'_>) -> Label {
        let text = |column: &str| cells.word(column).to_owned();
        let behind = match (cells.word("off_policy"), self.off_policy) {
            (_, Some(0)) => String::new(),
            (_, Some(n)) => format!(", {n} behind"),
            (word, None) => format!(", {word}"),
        };
        let engines =
            self.generator_tp.map_or_else(String::new, |tp| format!(", {} engines of tp{tp}", self.gpus[1] / tp));
        Label {
            row: text("row"),
            line: cells.line,
            set: set(cells.word("source")),
            model: text("model"),
            card: text("gpu"),
            format: text("precision"),
            layout: format!("{}{engines}", self.degrees.words()),
            variant: format!("{}{behind}", self.placement.word()),
        }
    }

    fn row(&self, prompt_of_model: Option<f64>) -> Row {
        let seconds = self.step_s.map(|step_s| [step_s; 2]);
        let asked = self.asked(prompt_of_model).map(|step| Asked::Step(Box::new(step)));
        Row { label: self.label.clone(), asked, measured: Measured { seconds, disagrees: self.disagrees } }
    }

    /// The step, or what is not known of it: the card first, then lengths, then the number of answers, then the layout.
    fn asked(&self, prompt_of_model: Option<f64>) -> Result<super::step::Step, Reason> {
        let Label { card, model, format, .. } = &self.label;
        one_card(card).ok_or_else(|| Reason::Card { word: card.clone() })?;
        let mean = self.mean.ok_or_else(|| Reason::Lengths { stated: self.stated_length() })?;
        let ([prompts, answers], limit) = (self.batch.ok_or(Reason::Batch)?, self.limit.ok_or(Reason::Batch)?);
        let recipe = Recipe::of(&self.recipe).ok_or_else(|| Reason::Recipe { word: self.recipe.clone() })?;
        let prompt = if self.disagrees { prompt_of_model } else { self.prompt };
        let known = (self.generator_tp, self.memory_ratio, self.off_policy, prompt);
        let (Some(generator_tp), Some(memory_ratio), Some(off_policy), Some(prompt)) = known else {
            return Err(Reason::Layout);
        };
        let stated = Stated {
            model: model.clone(),
            card: card.clone(),
            format: format.clone(),
            gpus: self.gpus,
            degrees: self.degrees,
            generator_tp,
            memory_ratio,
            checkpoints: self.checkpoints,
            prompts,
            answers,
            prompt: u32::try_from(hw::whole(prompt)).unwrap_or(u32::MAX),
            limit,
            mean,
            placement: self.placement,
            off_policy,
        };
        stated.step(recipe)
    }

    fn stated_length(&self) -> String {
        self.limit.map_or_else(String::new, |limit| format!("at most {limit} tokens"))
    }
}

/// Expert degree of a row's recipe where the printed one is another (`recipe: train_ep row 16 recipe 8`): the recipe is what runs.
fn recipe_ep(flags: &str) -> Option<u32> {
    let flag = flags.split(';').find_map(|flag| flag.trim().strip_prefix("recipe: train_ep row "))?;
    flag.rsplit(' ').next()?.parse().ok()
}

fn placement(cells: &mut Cells<'_>) -> Placement {
    let word = cells.word("placement").to_owned();
    Placement::named(&word).unwrap_or_else(|| {
        cells.fault("placement", format!("`{word}` is none of `colocated`, `split`"));
        Placement::Colocated
    })
}

/// Framework of a source.
fn set(source: &str) -> &'static str {
    const SETS: [&str; 3] = ["NeMo-RL", "verl", "AReaL"];
    SETS.iter().find(|set| source.starts_with(*set)).unwrap_or(&"other")
}

/// A line of a table of transfers.
fn transfer(cells: &mut Cells<'_>) -> Row {
    let [from, to] = ["gpus_train", "gpus_rollout"].map(|column| cells.positive(column));
    let seconds = ["sync_s_min", "sync_s_max"].map(|column| cells.positive_number(column));
    let seconds = if let [Some(low), Some(high)] = seconds { Some([low, high]) } else { None };
    let text = |column: &str| cells.word(column).to_owned();
    let label = Label {
        row: text("row"),
        line: cells.line,
        set: set(cells.word("source")),
        model: text("model"),
        card: text("gpu"),
        format: "bf16".to_owned(),
        layout: format!("{from} to {to} GPUs"),
        variant: text("method"),
    };
    // A method that sends a difference says so in its name.
    let asked = if label.variant.starts_with("delta") {
        Err(Reason::Delta)
    } else {
        match one_card(&label.card) {
            Some(_) => {
                Transfer::of(&label.model, &label.card, [from, to]).map(|found| Asked::Transfer(Box::new(found)))
            }
            None => Err(Reason::Card { word: label.card.clone() }),
        }
    };
    Row { label, asked, measured: Measured { seconds, disagrees: false } }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "row,source,model,gpu,gpus,gpus_train,gpus_rollout,placement,off_policy,precision,prompts_per_step,responses_per_prompt,\
                        responses_per_step,max_response_tokens,mean_response_tokens,train_tp,train_pp,train_cp,train_ep,gen_tp,\
                        rollout_gpu_memory_fraction,activation_checkpointing,step_s,implied_prompt_tokens,recipe,flags";

    fn rows(lines: &[&str]) -> Result<Vec<Row>, Vec<Fault>> {
        read(&format!("{HEAD}\n{}\n", lines.join("\n"))).expect("a table of steps")
    }

    fn step(row: &Row) -> &super::super::step::Step {
        let Ok(Asked::Step(step)) = &row.asked else { panic!("a step: {:?}", row.asked) };
        step
    }

    const DENSE: &str = "1,NeMo-RL 0.5,LLAMA3.1_8B,H100,16,16,16,colocated,0 (synchronous),bf16,64,32,2048,4096,1019,1,2,1,1,1,0.6,1,90,127,\
                         v0.5.0 grpo-llama3.1-8b-instruct-2n8g,train_batch_512";

    #[test]
    fn a_line_is_a_trainer_an_engine_and_lengths() {
        let rows = rows(&[DENSE]).expect("a row");
        let step = step(&rows[0]);
        let layout = step.trainer.layout;
        assert_eq!((layout.tp, layout.pp, layout.dp, step.trainer.cluster.n_gpus()), (1, 2, 8, 16));
        // The limit is of prompt and answer: 4096 − 127 tokens.
        assert_eq!((step.rollouts.n(), step.rollouts.prompt, step.rollouts.most), (2048, 127, 3969));
        // Packs of one limit in training, of two in log probabilities.
        assert_eq!((step.update, step.pack_tokens), (512, [4096, 8192]));
        // Sixteen engines of one GPU, 128 answers each.
        let part = &step.generator.parts[0];
        assert_eq!((part.n, part.limits.sequences_max, part.limits.context_max), (16, 128, 4096));
        assert_eq!(rows[0].measured, Measured { seconds: Some([90.0; 2]), disagrees: false });
    }

    #[test]
    fn a_row_that_contradicts_itself_takes_the_prompt_of_others() {
        let odd = DENSE.replace(",127,", ",1059,").replace("train_batch_512", "tokens_and_step_time_disagree");
        let rows = rows(&[DENSE, &DENSE.replace(",127,", ",131,"), &odd]).expect("rows");
        assert_eq!(step(&rows[2]).rollouts.prompt, 129);
        assert!(rows[2].measured.disagrees);
    }

    #[test]
    fn a_degree_of_the_recipe_stands_in_place_of_the_printed_one() {
        assert_eq!(recipe_ep("recipe: train_ep row 16 recipe 8;train_batch_512"), Some(8));
        assert_eq!(recipe_ep("train_batch_512"), None);
    }

    #[test]
    fn what_is_not_stated_is_a_reason() {
        let reason = |line: &str| rows(&[line]).expect("a row")[0].asked.as_ref().expect_err("a reason").clone();
        assert_eq!(reason(&DENSE.replace("H100", "not stated")), Reason::Card { word: "not stated".to_owned() });
        let stated = "at most 4096 tokens".to_owned();
        assert_eq!(reason(&DENSE.replace(",1019,", ",,")), Reason::Lengths { stated });
        assert_eq!(reason(&DENSE.replace(",64,32,", ",,,")), Reason::Batch);
        assert_eq!(reason(&DENSE.replace(",0.6,", ",,")), Reason::Layout);
        assert_eq!(reason(&DENSE.replace("v0.5.0", "v0.9.0")).name(), "recipe");
        // 16 GPUs in three stages, engines of three GPUs, six answers over eight groups, a mean above the limit.
        for (from, to) in [(",1,2,1,", ",1,3,1,"), (",1,1,0.6", ",1,3,0.6"), (",64,32,", ",3,2,")] {
            assert_eq!(reason(&DENSE.replace(from, to)).name(), "degrees", "{to}");
        }
        assert_eq!(reason(&DENSE.replace(",1019,", ",4000,")).name(), "limit");
        assert_eq!(reason(&DENSE.replace("LLAMA3.1_8B", "other")).name(), "model");
    }

    #[test]
    fn faults_are_named_with_line_and_column() {
        let faults = rows(&[&DENSE.replace("colocated", "shared").replace(",90,", ",-90,")]).expect_err("faults");
        let words: Vec<String> = faults.iter().map(Fault::words).collect();
        assert_eq!(
            words,
            [
                "line 2, column `placement`: `shared` is none of `colocated`, `split`",
                "line 2, column `step_s`: must be above 0, found `-90`",
            ]
        );
        assert!(read("row,step_s\n1,2\n").is_none());
        let missing = read("off_policy,mean_response_tokens\n0,1\n").expect("known").expect_err("columns");
        assert!(missing.iter().any(|fault| fault.words() == "line 1, column `step_s`: no such column"));
    }

    #[test]
    fn a_transfer_is_of_all_weights_and_a_difference_is_a_reason() {
        let head = "row,source,model,gpu,gpus_train,gpus_rollout,method,sync_s_min,sync_s_max";
        let lines = "1,verl a.md,Qwen2.5-7B,H100,8,8,nccl full broadcast,4,9\n2,verl a.md,Qwen2.5-7B,H100,8,8,delta_sharded,1,1";
        let rows = read(&format!("{head}\n{lines}\n")).expect("known").expect("rows");
        let Ok(Asked::Transfer(transfer)) = &rows[0].asked else { panic!("a transfer") };
        // 7.6 billion parameters in 16 bits; trainer and engines are on two nodes.
        assert!((15.2e9..15.3e9).contains(&hw::real(transfer.bytes.0)), "{}", transfer.bytes.0);
        assert_eq!(transfer.trainer.cluster.n_nodes, 2);
        assert_eq!(rows[0].measured.middle(), Some(6.0));
        assert_eq!(rows[1].asked.as_ref().expect_err("a reason"), &Reason::Delta);
    }
}
