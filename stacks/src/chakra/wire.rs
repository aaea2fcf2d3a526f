//! Messages of Chakra in the wire format of Protocol Buffers: a length before each, fields by number.
//!
//! Numbers are those of `et_def.proto`. Only fields that a trace of ours has are written; a field at its default is left out, as the format asks.

use super::nodes::{Kind, Node, Value};

/// Numbers of a field's form on the wire.
const VARINT: u64 = 0;
const BYTES: u64 = 2;

/// A file: its version, then every node.
pub(super) fn trace(version: &str, nodes: &[Node]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut head = Vec::new();
    bytes(&mut head, 1, version.as_bytes());
    delimited(&mut out, &head);
    for node in nodes {
        delimited(&mut out, &message(node));
    }
    out
}

fn delimited(out: &mut Vec<u8>, message: &[u8]) {
    varint(out, message.len() as u64);
    out.extend_from_slice(message);
}

fn message(node: &Node) -> Vec<u8> {
    let mut out = Vec::new();
    number(&mut out, 1, node.id);
    bytes(&mut out, 2, node.name.as_bytes());
    number(&mut out, 3, kind(node.kind));
    packed(&mut out, 4, &node.control);
    packed(&mut out, 5, &node.data);
    number(&mut out, 7, node.duration_us);
    for (name, value) in &node.attributes {
        bytes(&mut out, 10, &attribute(name, value));
    }
    out
}

/// The number of a kind of node.
const fn kind(of: Kind) -> u64 {
    match of {
        Kind::Load => 2,
        Kind::Store => 3,
        Kind::Computation => 4,
        Kind::Send => 5,
        Kind::Receive => 6,
        Kind::Collective => 7,
    }
}

fn attribute(name: &str, value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    bytes(&mut out, 1, name.as_bytes());
    // A value is one of several, so it is written at its default as well.
    match value {
        Value::Int32(n) => tagged(&mut out, 7, u64::from(*n)),
        Value::Int64(n) => tagged(&mut out, 9, *n),
        Value::Uint64(n) => tagged(&mut out, 13, *n),
        Value::Flag(is_set) => tagged(&mut out, 27, u64::from(*is_set)),
        Value::Text(text) => bytes(&mut out, 29, text.as_bytes()),
    }
    out
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn number(out: &mut Vec<u8>, field: u64, value: u64) {
    if value > 0 {
        tagged(out, field, value);
    }
}

fn tagged(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3 | VARINT);
    varint(out, value);
}

fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    if !value.is_empty() {
        varint(out, field << 3 | BYTES);
        delimited(out, value);
    }
}

fn packed(out: &mut Vec<u8>, field: u64, values: &[u64]) {
    let mut all = Vec::new();
    for value in values {
        varint(&mut all, *value);
    }
    bytes(out, field, &all);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_the_bytes_that_a_hand_writes() {
        // Field 1 is 150, as the format's own example has it: 08 96 01. Field 2 is "ab", 12 02 61 62. Field 3 is a computation, 18 04. Field 5 has
        // the packed numbers 1 and 300: 2a 03 01 ac 02. Field 7 is 5: 38 05. Field 10 is an attribute of six bytes: 52 06, its name "c" 0a 01 63, and
        // its flag, field 27, which needs two bytes of tag: d8 01 00.
        let node = Node {
            id: 150,
            name: "ab".to_owned(),
            kind: Kind::Computation,
            control: Vec::new(),
            data: vec![1, 300],
            duration_us: 5,
            attributes: vec![("c", Value::Flag(false))],
        };
        let expected = [
            0x08, 0x96, 0x01, 0x12, 0x02, 0x61, 0x62, 0x18, 0x04, 0x2a, 0x03, 0x01, 0xac, 0x02, 0x38, 0x05, 0x52, 0x06,
            0x0a, 0x01, 0x63, 0xd8, 0x01, 0x00,
        ];
        assert_eq!(message(&node), expected);
        // The version and the node, each behind its length: 3 bytes and 24.
        let file = trace("1", &[node]);
        assert_eq!((file[0], &file[1..4], file[4]), (3, &[0x0a, 0x01, 0x31][..], 24));
    }
}
