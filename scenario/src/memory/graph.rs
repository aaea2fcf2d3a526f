//! `[[symbol]]`, `[[argument]]` and `[[operation]]`: a step as data, its sizes as expressions over `batch` and `sequence`.

use toml_span::value::ValueInner;
use train::tensor_graph::parse::expression;
use train::tensor_graph::symbolic::{Comparison, Expression, Symbol, Symbols};
use train::tensor_graph::{Kind, Operation, TensorGraph, TensorId, Work};

use input::diagnostic::Code;
use input::reader::{Section, place_of, unknown};

/// Most operations: sums over a step stay small numbers.
const OPERATIONS_MAX: usize = 2000;
/// Largest size of a tensor and largest dimension of a product, where it is known.
const SIZE_MAX: i128 = 1 << 50;
const SIDE_MAX: i128 = 1 << 30;

/// The step; `None` where the file has no operation.
pub fn read(top: &mut Section<'_>, known: &[Symbol; 2]) -> Option<TensorGraph> {
    let mut graph = TensorGraph::default();
    known.iter().for_each(|symbol| {
        graph.symbols.add(symbol.clone());
    });
    let is_given = top.has("operation");
    top.each_table("symbol", &mut |table| symbol(table, &mut graph.symbols));
    top.each_table("argument", &mut |table| argument(table, &mut graph));
    top.each_table("operation", &mut |table| operation(table, &mut graph));
    if graph.operations.len() > OPERATIONS_MAX {
        let what = format!("{} operations, allowed are {OPERATIONS_MAX}", graph.operations.len());
        top.wrong(Code::OutOfRange, None, what);
    }
    is_given.then_some(graph)
}

/// A size that is at least 1 whatever the symbols are, and not beyond `most`.
fn size(section: &mut Section<'_>, key: &'static str, symbols: &Symbols, most: i128) -> Option<Expression> {
    let (text, at) = match section.take(key)? {
        (ValueInner::String(text), at) => (text.into_owned(), at),
        (ValueInner::Integer(number), at) => (number.to_string(), at),
        (_, at) => {
            let what = format!("`{}` is neither a number nor a size as text", section.full(key));
            section.wrong(Code::WrongType, at, what);
            return None;
        }
    };
    let help = "for example `2*batch*sequence*4096`";
    let found = match expression(&text, symbols) {
        Ok(found) => symbols.canonical(&found),
        Err(why) => {
            let what = format!("`{}` is `{text}`: {why}", section.full(key));
            section.refuse(Code::WrongSize, at, what, help);
            return None;
        }
    };
    let is_at_least = |number: i128| {
        matches!(symbols.compare(&found, &Expression::constant(number)), Comparison::AtLeast | Comparison::Equal)
    };
    let likely = found.value(&|id| symbols.get(id).high.unwrap_or(symbols.get(id).low));
    if !is_at_least(1) {
        let what = format!("`{}` is `{text}`, which may be below 1", section.full(key));
        section.refuse(Code::WrongSize, at, what, "`compiler.sequence_min` says what the least size is");
        return None;
    }
    if likely > most {
        let what = format!("`{}` is `{text}`, which comes to {likely}", section.full(key));
        section.refuse(Code::WrongSize, at, what, format!("allowed is up to {most}"));
        return None;
    }
    Some(found)
}

/// A symbol that follows from others.
fn symbol(mut section: Section<'_>, symbols: &mut Symbols) {
    let name = section.name();
    let equals = size(&mut section, "equals", symbols, SIZE_MAX);
    if equals.is_none() {
        section.missing("equals", "what it follows from, for example `12*sequence`");
    }
    if let Some((name, equals)) = name.zip(equals) {
        if symbols.named(&name).is_some() {
            let at = section.at();
            section.wrong(Code::TwiceNamed, at, format!("two symbols are called `{name}`"));
        } else {
            let id = symbols.add(Symbol::unbounded(&name));
            symbols.equate(id, &equals).expect("a new symbol is in no expression");
        }
    }
    section.finish();
}

fn argument(mut section: Section<'_>, graph: &mut TensorGraph) {
    let tensor = named_size(&mut section, graph);
    section.finish();
    if let Some((name, bytes)) = tensor {
        graph.argument(&name, &bytes);
    }
}

/// Name and bytes of a tensor.
fn named_size(section: &mut Section<'_>, graph: &TensorGraph) -> Option<(String, Expression)> {
    let name = section.name();
    let bytes = size(section, "bytes", &graph.symbols, SIZE_MAX);
    if bytes.is_none() {
        section.missing("bytes", "its size, for example `2*batch*sequence*4096`");
    }
    let (name, bytes) = name.zip(bytes)?;
    if tensor(graph, &name).is_some() {
        let at = section.at();
        section.wrong(Code::TwiceNamed, at, format!("two tensors are called `{name}`"));
        return None;
    }
    Some((name, bytes))
}

fn tensor(graph: &TensorGraph, name: &str) -> Option<TensorId> {
    let at = graph.tensors.iter().position(|tensor| tensor.name == name)?;
    Some(TensorId(u32::try_from(at).expect("few tensors")))
}

/// A tensor by name; a finding where there is none.
fn found(
    section: &mut Section<'_>,
    graph: &TensorGraph,
    name: &str,
    at: Option<std::ops::Range<usize>>,
) -> Option<TensorId> {
    let id = tensor(graph, name);
    if id.is_none() {
        let names: Vec<&str> = graph.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        section.find(unknown(Code::UnknownName, format!("no tensor `{name}` before this operation"), name, names, at));
    }
    id
}

fn operation(mut section: Section<'_>, graph: &mut TensorGraph) {
    let name = section.name();
    let kind = Kind::WORDS[section.word("kind", 0, &Kind::WORDS.map(|(word, _)| word))].1;
    let inputs = inputs(&mut section, graph);
    let updates = section.text("updates").and_then(|(name, at)| {
        let id = found(&mut section, graph, &name, at.clone())?;
        if !graph.is_argument(id) {
            let what = format!("`{name}` is no argument");
            section.refuse(Code::UnknownName, at, what, "arguments alone are updated in place");
            return None;
        }
        Some(id)
    });
    let mut outputs: Vec<(String, Expression, bool)> = Vec::new();
    section.each_table("outputs", &mut |mut table| {
        let output = named_size(&mut table, graph);
        let is_result = table.flag("result", false);
        table.finish();
        outputs.extend(output.map(|(name, bytes)| (name, bytes, is_result)));
    });
    let work = work(&mut section, graph, &inputs, &outputs);
    section.finish();
    let Some(name) = name else { return };
    let operation = Operation { name, kind, inputs, outputs: Vec::new(), updates, work };
    let shapes: Vec<(&str, &Expression)> = outputs.iter().map(|(name, bytes, _)| (name.as_str(), bytes)).collect();
    let written = graph.operation(operation, &shapes);
    for (id, (.., is_result)) in written.into_iter().zip(&outputs) {
        graph.tensors[id.index()].is_output = *is_result;
    }
}

fn inputs(section: &mut Section<'_>, graph: &TensorGraph) -> Vec<TensorId> {
    let Some((value, at)) = section.take("inputs") else { return Vec::new() };
    let ValueInner::Array(items) = value else {
        section.wrong(Code::WrongType, at, "`operation.inputs` is not a list of names");
        return Vec::new();
    };
    let mut inputs = Vec::with_capacity(items.len());
    for item in &items {
        match item.as_str() {
            Some(name) => inputs.extend(found(section, graph, name, place_of(item))),
            None => {
                section.wrong(Code::WrongType, place_of(item), "`operation.inputs` holds something that is no name")
            }
        }
    }
    inputs
}

/// `gemm`, `traffic` or `time_us`; without any, what it reads and writes.
fn work(
    section: &mut Section<'_>,
    graph: &TensorGraph,
    inputs: &[TensorId],
    outputs: &[(String, Expression, bool)],
) -> Work {
    let given = section.alternatives(&["gemm", "traffic", "time_us"]);
    if given.len() > 1 {
        let keys: Vec<String> = given.iter().map(|key| format!("`{key}`")).collect();
        let what = format!("{} of an operation exclude each other", keys.join(" and "));
        let at = section.at();
        section.wrong(Code::ExclusiveKeys, at, what);
    }
    let symbols = &graph.symbols;
    let gemm = section.table("gemm").and_then(|mut table| {
        let [m, n, k] = ["m", "n", "k"].map(|key| {
            let side = size(&mut table, key, symbols, SIDE_MAX);
            if side.is_none() {
                table.missing(key, "a product is of `m × k` and `k × n`");
            }
            side
        });
        table.finish();
        let (m, (n, k)) = m.zip(n.zip(k))?;
        Some(Work::Gemm { m, n, k })
    });
    let traffic = size(section, "traffic", symbols, SIZE_MAX).map(Work::Traffic);
    let time_us = section.has("time_us").then(|| section.number("time_us", 0.0, 0.0..=1e9));
    let fixed = time_us.map(|us| Work::Fixed(hw::Span::from_seconds(hw::Seconds::new(us / 1e6)).as_ns()));
    gemm.or(traffic).or(fixed).unwrap_or_else(|| {
        let read = inputs.iter().map(|input| &graph.tensors[input.index()].bytes);
        let all = read.chain(outputs.iter().map(|(_, bytes, _)| bytes));
        Work::Traffic(all.fold(Expression::default(), |sum, bytes| sum.plus(bytes)))
    })
}
