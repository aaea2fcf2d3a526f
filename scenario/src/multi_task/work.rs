//! `[[operator]]` and `[[task]]`: stacks of layers that tasks share, and which of them each task sends its batch through.

use toml_span::value::ValueInner;
use train::multi_task::{Body, Call, Operator, Task, cost};

use input::diagnostic::{Code, Finding};
use input::reader::{Place, Section, place_of, unknown};

/// What both lists say.
pub struct WorkSection {
    /// Operators.
    pub operators: Vec<Operator>,
    /// Tasks.
    pub tasks: Vec<Task>,
    /// Calls, task by task.
    pub calls: Vec<Call>,
}

/// Reads both lists; `None` where one is missing or nothing in it could be read.
pub fn read(top: &mut Section<'_>) -> Option<WorkSection> {
    let empty = ["operator", "task"].map(|key| top.is_empty_list(key));
    let mut operators: Vec<Operator> = Vec::new();
    top.each_table("operator", &mut |table| {
        let found = operator(table, &operators);
        operators.extend(found);
    });
    let mut work = WorkSection { operators, tasks: Vec::new(), calls: Vec::new() };
    top.each_table("task", &mut |table| task(table, &mut work));
    for ((key, is_empty), keys) in
        ["operator", "task"].into_iter().zip(empty).zip(["`layers` and `hidden`", "`batch` and `flow`"])
    {
        let help = format!("write `[[{key}]]` with `name`, {keys}");
        if is_empty {
            top.refuse(Code::OutOfRange, None, format!("`{key}` is an empty list"), help);
        } else {
            top.missing(key, &help);
        }
    }
    (!work.operators.is_empty() && !work.calls.is_empty()).then_some(work)
}

/// Two of a list with one name.
fn twice(section: &mut Section<'_>, what: &str, name: &str) {
    let at = section.at();
    let finding = Finding::error(Code::TwiceNamed, at, format!("two {what} are called `{name}`"));
    section.find(finding.help("they are referred to by name; give each its own"));
}

/// `[[operator]]`: attention and feed-forward with `heads`, a feed-forward with `intermediate` alone, else measured times alone.
fn operator(mut section: Section<'_>, known: &[Operator]) -> Option<Operator> {
    let name = section.name();
    let n_layers = section.small("layers", None, 1..=10_000);
    let hidden = section.count("hidden", None, 1..=1_000_000).0;
    let body = body(&mut section, hidden);
    let parameters =
        section.count("parameters_per_layer", Some(cost::parameters(hidden, &body)), 0..=1_000_000_000_000).0;
    let tensor_degrees = tensor(&mut section, &body);
    if let Some(name) = name.as_ref().filter(|name| known.iter().any(|other| other.name == **name)) {
        twice(&mut section, "operators", name);
    }
    section.finish();
    Some(Operator { name: name?, n_layers, hidden, body, parameters, tensor_degrees })
}

fn body(section: &mut Section<'_>, hidden: u64) -> Body {
    let has_shape = section.has("heads");
    if !has_shape {
        for key in ["kv_heads", "gated", "causal", "experts", "experts_per_token"] {
            if section.has(key) {
                let what = format!("`{}` is about attention, and the operator has no `heads`", section.full(key));
                let at = section.take(key).and_then(|(_, at)| at);
                section.refuse(Code::UnknownKey, at, what, "write `heads`, or leave the key out");
            }
        }
        if !section.has("intermediate") {
            return Body::Given;
        }
        return Body::FeedForward { intermediate: section.count("intermediate", None, 1..=1_000_000).0 };
    }
    let (n_heads, at) = section.count("heads", None, 1..=100_000);
    let (n_kv_heads, kv_at) = section.count("kv_heads", Some(n_heads), 1..=100_000);
    let intermediate = section.count("intermediate", Some(4 * hidden), 1..=4_000_000).0;
    if !hidden.is_multiple_of(n_heads) {
        let what = format!("{n_heads} heads do not divide the width {hidden}");
        section.wrong(Code::UnevenDegree, at, what);
    }
    if !n_heads.is_multiple_of(n_kv_heads) {
        let what = format!("{n_kv_heads} key-value heads do not divide the {n_heads} heads");
        section.wrong(Code::UnevenDegree, kv_at, what);
    }
    let (gated, causal) = (section.flag("gated", false), section.flag("causal", false));
    let experts = experts(section);
    Body::Transformer { n_heads, n_kv_heads, intermediate, gated, causal, experts }
}

/// `experts`, each as wide as `intermediate`, and how many a token visits.
fn experts(section: &mut Section<'_>) -> Option<[u64; 2]> {
    let has_experts = section.has("experts");
    if !has_experts {
        section.idle(&["experts_per_token"], "`experts` in the place of a feed-forward");
    }
    let n = section.count("experts", Some(1), 1..=10_000).0;
    let (of_token, at) = section.count("experts_per_token", Some(1), 1..=10_000);
    if has_experts && of_token > n {
        let what = format!("a token visits {of_token} of {n} experts");
        section.refuse(Code::WrongExperts, at, what, "`experts_per_token` is at most `experts`");
    }
    has_experts.then_some([n, of_token.min(n)])
}

/// `tensor`: degrees that may be used.
fn tensor(section: &mut Section<'_>, body: &Body) -> Vec<u32> {
    let Some((value, at)) = section.take("tensor") else { return vec![1] };
    let heads = if let Body::Transformer { n_heads, .. } = body { Some(*n_heads) } else { None };
    let allowed = match heads {
        Some(heads) => format!("allowed is a list of divisors of the {heads} heads, for example [1, 2]"),
        None => "without `heads` nothing is cut over a tensor group: allowed is [1]".to_owned(),
    };
    let ValueInner::Array(items) = value else {
        let what = format!("`{}` is not a list", section.full("tensor"));
        section.refuse(Code::WrongType, at, what, allowed);
        return vec![1];
    };
    let mut found = Vec::with_capacity(items.len());
    for item in &items {
        let degree = item.as_integer().and_then(|n| u32::try_from(n).ok());
        let divides = |n: &u32| *n > 0 && heads.map_or(*n == 1, |heads| heads.is_multiple_of(u64::from(*n)));
        match degree.filter(divides) {
            Some(degree) => found.push(degree),
            None => {
                let what = format!("`{}` holds a degree that cannot be used", section.full("tensor"));
                section.refuse(Code::UnevenDegree, place_of(item), what, allowed.clone());
            }
        }
    }
    if items.is_empty() {
        let what = format!("`{}` is empty", section.full("tensor"));
        section.refuse(Code::OutOfRange, at, what, allowed);
    }
    found.sort_unstable();
    found.dedup();
    if found.is_empty() { vec![1] } else { found }
}

/// `[[task]]`: its batch, and the operators that it goes through.
fn task(mut section: Section<'_>, work: &mut WorkSection) {
    let name = section.name();
    let batch = section.count("batch", None, 1..=1_000_000).0;
    if let Some(name) = name.as_ref().filter(|name| work.tasks.iter().any(|task| task.name == **name)) {
        twice(&mut section, "tasks", name);
    }
    let (index, first) = (work.tasks.len(), work.calls.len());
    let mut n_calls = 0;
    section.each_table("flow", &mut |table| {
        n_calls += 1;
        call(table, index, first, work);
    });
    if n_calls == 0 {
        section.missing("flow", "a list of `{ operator = \"…\", tokens = … }`, each behind those that it needs");
    }
    section.finish();
    // Calls know their task by index, so a task without a name keeps its place; the name was found missing above.
    work.tasks.push(Task { name: name.unwrap_or_default(), batch });
}

/// An item of `flow`.
fn call(mut section: Section<'_>, task: usize, first: usize, work: &mut WorkSection) {
    let (written, operator) = operator_of(&mut section, &work.operators);
    let tokens = section.count("tokens", None, 1..=1_000_000).0;
    let output_tokens = section.count("output_tokens", Some(tokens), 1..=1_000_000).0;
    let of_task = |call: &Call| call.task == task;
    let earlier: Vec<(usize, String)> =
        (first..).zip(work.calls[first..].iter().filter(|call| of_task(call)).map(|call| call.name.clone())).collect();
    let after = after(&mut section, &earlier);
    let times = times(&mut section);
    let named = if section.has("name") { section.name() } else { None };
    let name = named.unwrap_or(written);
    if earlier.iter().any(|(_, other)| *other == name) && !name.is_empty() {
        twice(&mut section, "calls of a task", &name);
    }
    let is_given = operator.filter(|&at| work.operators[at].body == Body::Given);
    if let (Some(at), None) = (is_given, &times) {
        let name = &work.operators[at].name;
        let help = format!("`{name}` has neither `heads` nor `intermediate`, so nothing else is known of it");
        section.missing("times_ms", &help);
    }
    section.finish();
    // An unknown operator was found above and ends the reading; the call keeps its place for those after it.
    let (operator, times) = (operator.unwrap_or(0), times.unwrap_or_default());
    if !work.operators.is_empty() {
        work.calls.push(Call { task, operator, name, tokens, output_tokens, after, times });
    }
}

/// The operator as it is written, and its index.
fn operator_of(section: &mut Section<'_>, operators: &[Operator]) -> (String, Option<usize>) {
    let names = || operators.iter().map(|operator| operator.name.as_str());
    let Some((name, at)) = section.text("operator") else {
        section.missing("operator", &format!("one of {}", names().collect::<Vec<_>>().join(", ")));
        return (String::new(), None);
    };
    let found = operators.iter().position(|operator| operator.name == name);
    if found.is_none() {
        section.find(unknown(Code::UnknownName, format!("unknown operator `{name}`"), &name, names(), at));
    }
    (name, found)
}

/// `after`: earlier calls of the task by name.
fn after(section: &mut Section<'_>, earlier: &[(usize, String)]) -> Vec<usize> {
    let Some((value, at)) = section.take("after") else { return Vec::new() };
    let ValueInner::Array(items) = value else {
        let what = format!("`{}` is not a list of names", section.full("after"));
        section.refuse(Code::WrongType, at, what, "write names of earlier items of the flow, in quotation marks");
        return Vec::new();
    };
    let mut found = Vec::with_capacity(items.len());
    for item in &items {
        let name = item.as_str().unwrap_or_default().to_owned();
        match earlier.iter().find(|(_, known)| *known == name) {
            Some((index, _)) => found.push(*index),
            None => {
                let what = format!("`{}` names `{name}`, which is no earlier item of the flow", section.full("after"));
                let names = earlier.iter().map(|(_, name)| name.as_str());
                section.find(unknown(Code::UnknownName, what, &name, names, place_of(item)));
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// `times_ms`: pairs of GPUs and milliseconds of one layer, forward and backward; in seconds.
fn times(section: &mut Section<'_>) -> Option<Vec<(u32, f64)>> {
    let (value, at) = section.take("times_ms")?;
    let found = pairs(&value).filter(|pairs| {
        !pairs.is_empty() && pairs.windows(2).all(|two| two[0].0 < two[1].0) && pairs.iter().all(|pair| pair.1 > 0.0)
    });
    if found.is_none() {
        wrong_times(section, at);
    }
    Some(found.unwrap_or_else(|| vec![(1, 1.0)]))
}

fn wrong_times(section: &mut Section<'_>, at: Place) {
    let what = format!("`{}` is no list of pairs of GPUs and milliseconds", section.full("times_ms"));
    let help = "write [[1, 8.0], [2, 4.5]]: GPUs rising, milliseconds of one layer forward and backward above 0";
    section.refuse(Code::WrongType, at, what, help);
}

fn pairs(value: &ValueInner<'_>) -> Option<Vec<(u32, f64)>> {
    let ValueInner::Array(items) = value else { return None };
    let pair = |item: &toml_span::Value<'_>| -> Option<(u32, f64)> {
        let [n, ms] = item.as_array()?.as_slice() else { return None };
        let ms = ms.as_float().or_else(|| ms.as_integer().map(|n| n as f64)).filter(|ms| (0.0..=1e6).contains(ms))?;
        let n = n.as_integer().and_then(|n| u32::try_from(n).ok()).filter(|n| (1..=100_000).contains(n))?;
        Some((n, ms / 1e3))
    };
    items.iter().map(pair).collect()
}
