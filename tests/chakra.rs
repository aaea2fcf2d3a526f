//! A step as execution traces of Chakra, read back by a reader that shares nothing with the writer.

use std::collections::BTreeMap;

use super::foreign::{exported, planned};
use stacks::export::{ExportError, File};

/// Numbers of Chakra's kinds of nodes.
const COMPUTATION: u64 = 4;
const SEND: u64 = 5;
const RECEIVE: u64 = 6;
const COLLECTIVE: u64 = 7;

/// A node as it is read: fields with one number, lists, and attributes as numbers or bytes.
#[derive(Default)]
struct Node {
    id: u64,
    kind: u64,
    deps: Vec<u64>,
    attributes: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Number(u64),
    Text(Vec<u8>),
}

impl Node {
    fn number(&self, name: &str) -> u64 {
        match self.attributes.get(name) {
            Some(Value::Number(n)) => *n,
            other => panic!("`{name}` is {other:?}"),
        }
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().expect("a byte");
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if *first < 0x80 {
            break;
        }
    }
    value
}

fn delimited<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let n = usize::try_from(varint(bytes)).expect("a length");
    let (found, rest) = bytes.split_at(n);
    *bytes = rest;
    found
}

/// Fields of a message: number and value.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Value)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut bytes)),
            2 => Value::Text(delimited(&mut bytes).to_vec()),
            form => panic!("no field has form {form}"),
        };
        found.push((tag >> 3, value));
    }
    found
}

fn attribute(bytes: &[u8]) -> (String, Value) {
    let mut fields = fields(bytes);
    let (_, value) = fields.pop().expect("a value");
    let Some((1, Value::Text(name))) = fields.pop() else { panic!("a name") };
    (String::from_utf8(name).expect("a text"), value)
}

fn node(bytes: &[u8]) -> Node {
    let mut node = Node::default();
    for (number, value) in fields(bytes) {
        match (number, value) {
            (1, Value::Number(id)) => node.id = id,
            (3, Value::Number(kind)) => node.kind = kind,
            (4 | 5, Value::Text(packed)) => {
                let mut rest = &packed[..];
                while !rest.is_empty() {
                    node.deps.push(varint(&mut rest));
                }
            }
            (10, Value::Text(bytes)) => node.attributes.extend([attribute(&bytes)]),
            (2, Value::Text(_)) | (7, Value::Number(_)) => {}
            other => panic!("{other:?} is no field of a node"),
        }
    }
    node
}

/// Nodes of every rank.
fn traces(files: &[File]) -> BTreeMap<u64, Vec<Node>> {
    let of_rank = |file: &File| {
        let rank = file.name.strip_prefix("step.")?.strip_suffix(".et")?.parse().ok()?;
        let mut bytes = &file.bytes[..];
        assert_eq!(fields(delimited(&mut bytes)), [(1, Value::Text(b"0.0.4".to_vec()))]);
        let mut nodes = Vec::new();
        while !bytes.is_empty() {
            nodes.push(node(delimited(&mut bytes)));
        }
        Some((rank, nodes))
    };
    files.iter().filter_map(of_rank).collect()
}

fn traced(scenario: &str, policy: &str) -> BTreeMap<u64, Vec<Node>> {
    let text = scenario::shipped(scenario).expect("shipped");
    let planned = planned(text, policy).unwrap_or_else(|why| panic!("{scenario}: {why}"));
    traces(&exported(&planned, "chakra").unwrap_or_else(|why| panic!("{scenario}: {why}")))
}

/// Both ends of every message, and what all members of a group do together: another simulator would wait for ever on what has one end.
fn hold(traces: &BTreeMap<u64, Vec<Node>>) {
    let mut sent = Vec::new();
    let mut received = Vec::new();
    let mut groups: BTreeMap<Value, BTreeMap<u64, Vec<(u64, u64)>>> = BTreeMap::new();
    for (rank, nodes) in traces {
        let mut seen = Vec::new();
        for node in nodes {
            assert!(node.deps.iter().all(|dep| seen.contains(dep)), "rank {rank}, node {}: {:?}", node.id, node.deps);
            seen.push(node.id);
            let ends = || ["comm_src", "comm_dst", "comm_tag", "comm_size"].map(|name| node.number(name));
            match node.kind {
                SEND => {
                    assert_eq!(node.number("comm_src"), *rank);
                    sent.push(ends());
                }
                RECEIVE => {
                    assert_eq!(node.number("comm_dst"), *rank);
                    received.push(ends());
                }
                COLLECTIVE => {
                    let group = groups.entry(node.attributes["pg_name"].clone()).or_default();
                    group.entry(*rank).or_default().push((node.number("comm_type"), node.number("comm_size")));
                }
                _ => {}
            }
        }
    }
    sent.sort_unstable();
    received.sort_unstable();
    assert_eq!(sent, received);
    for (group, members) in groups {
        let first = members.values().next().expect("a member");
        assert!(members.values().all(|of| of == first), "group {group:?} does not agree");
    }
}

#[test]
fn both_ends_of_every_exchange_are_there() {
    for (scenario, policy) in [
        ("quickstart", "skrull"),
        ("megatron/gpt-22b-selective", "megatron"),
        ("megatron/gpt-175b-selective", "megatron"),
        ("moe/lsh-hashes", "plain"),
        ("long-context/bytescale-offload", "none"),
    ] {
        let traces = traced(scenario, policy);
        hold(&traces);
        assert!(traces.len() > 1, "{scenario}");
    }
}

#[test]
fn operations_of_all_ranks_are_those_of_the_model() {
    // Narayanan et al. 2021 (arXiv:2104.04473, equation 3): 96 B s l h² (1 + s / 6h) with full recompute, and 6 B s h V for the logits. Unfused
    // attention computes all scores, as the formula has it.
    let [b, s, l, h, v] = [4.0, 2048.0, 48.0, 6144.0, 51_200.0];
    let expected = 96.0 * b * s * l * h * h * (1.0 + s / (6.0 * h)) + 6.0 * b * s * h * v;
    let traces = traced("megatron/gpt-22b-full", "megatron");
    let nodes = traces.values().flatten().filter(|node| node.kind == COMPUTATION);
    let found: f64 = nodes.map(|node| hw::real(node.number("num_ops"))).sum();
    assert!((found / expected - 1.0).abs() < 1e-3, "{found:e} operations, {expected:e} expected");
}

#[test]
fn a_step_of_units_has_waits_that_no_message_carries() {
    let planned = planned(scenario::shipped("pipeline/ragged").expect("shipped"), "deepspeed").expect("a plan");
    let why = exported(&planned, "chakra").expect_err("no messages");
    assert!(matches!(why, ExportError::NotExpressible { .. }) && why.to_string().contains("without a message"));
}
