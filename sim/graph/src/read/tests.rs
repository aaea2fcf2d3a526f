//! Files as people have them, and what is wrong with them.

use std::io::Write;

use super::*;

fn text(text: &str, columns: Columns, n_vertices: Option<u64>) -> Result<Edges, ReadError> {
    edges(text.as_bytes(), columns, n_vertices)
}

fn why(found: Result<Edges, ReadError>) -> String {
    found.expect_err("wrong").to_string()
}

/// As `numpy.save` writes it.
fn npy(kind: &str, shape: &str, bytes: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend(u16::try_from(header.len()).expect("short").to_le_bytes());
    out.extend(header.as_bytes());
    out.extend(bytes);
    out
}

/// A zip archive of files, deflated or not.
fn zip(files: &[(&str, Vec<u8>, bool)]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes, is_deflated) in files {
        let mut packed = bytes.clone();
        if *is_deflated {
            let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(bytes).expect("memory");
            packed = encoder.finish().expect("memory");
        }
        let four = |n: usize| u32::try_from(n).expect("small").to_le_bytes();
        let two = |n: usize| u16::try_from(n).expect("small").to_le_bytes();
        let method = two(if *is_deflated { 8 } else { 0 });
        directory.extend([b"PK\x01\x02".to_vec(), vec![20, 0, 20, 0, 0, 0], method.to_vec(), vec![0; 8]].concat());
        directory.extend([four(packed.len()), four(bytes.len())].concat());
        directory.extend(
            [two(name.len()).to_vec(), vec![0; 12], four(out.len()).to_vec(), name.as_bytes().to_vec()].concat(),
        );
        out.extend([b"PK\x03\x04".to_vec(), vec![20, 0, 0, 0], method.to_vec(), vec![0; 8]].concat());
        out.extend([four(packed.len()), four(bytes.len())].concat());
        out.extend([two(name.len()).to_vec(), vec![0; 2], name.as_bytes().to_vec(), packed].concat());
    }
    let start = u32::try_from(out.len()).expect("small").to_le_bytes();
    out.extend(directory);
    out.extend([b"PK\x05\x06".to_vec(), vec![0; 12], start.to_vec(), vec![0; 2]].concat());
    out
}

fn eights(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[test]
fn lists_of_edges_are_read_as_people_write_them() {
    let expected = Edges { edges: vec![(0, 1), (2, 0)], times: vec![], n_vertices: 3 };
    for written in
        ["0,1\n2,0\n", "0 1\n2 0", "# a graph\n0\t1\n\n2\t0\r\n", "source,target\n0,1\n2,0", "0,1,0.5\n2,0,0.7"]
    {
        assert_eq!(text(written, Columns::Edge, None).expect(written), expected, "{written}");
    }
    assert_eq!(text("0,1\n", Columns::Edge, Some(9)).expect("edges").n_vertices, 9);
    let events = text("0,1,5\n1,0,5.0\n0,2,9", Columns::Event, None).expect("events");
    assert_eq!(events.times, [5, 5, 9]);
    assert_eq!(events.events()[2], Event { source: 0, target: 2, time: 9 });
}

#[test]
fn what_is_wrong_has_its_line() {
    assert_eq!(
        why(text("0,1\n-2,0\n", Columns::Edge, None)),
        "line 2: vertex `-2` is negative; ids are counted from 0"
    );
    assert_eq!(
        why(text("0,1\n7,0\n", Columns::Edge, Some(5))),
        "line 2: vertex 7 is beyond the 5 of the graph; leave `vertices` out to take the largest id"
    );
    assert_eq!(
        why(text("0,1,5\n0,2,4\n", Columns::Event, None)),
        "line 2: time 4 is before the 5 of the line ahead; sort the file by time"
    );
    assert!(why(text("0,1\n0;2\n", Columns::Edge, None)).starts_with("line 2: `0;2` is no edge"));
    assert!(why(text("0,1\n3\n", Columns::Edge, None)).starts_with("line 2: `3` is no edge"));
    assert!(why(text("0,1\n", Columns::Event, None)).contains("is no time"));
    assert_eq!(why(text("# nothing\n", Columns::Edge, None)), "the file has no edge");
}

#[test]
fn rows_of_numpy_are_read_stored_and_deflated() {
    // 0 - 1 - 2 as scipy writes it: offsets of 8 bytes, neighbours of 4.
    let offsets = npy("<i8", "(4,)", &eights(&[0, 1, 3, 4]));
    let neighbours = npy("<i4", "(4,)", &[1_u32, 0, 2, 1].iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>());
    for is_deflated in [false, true] {
        let archive =
            zip(&[("indptr.npy", offsets.clone(), is_deflated), ("indices.npy", neighbours.clone(), is_deflated)]);
        let graph = rows(&archive).expect("a graph");
        assert_eq!([graph.row(0), graph.row(1), graph.row(2)], [&[1][..], &[0, 2], &[1]]);
    }
    let missing = rows(&zip(&[("indptr.npy", offsets, false)])).expect_err("missing").to_string();
    assert_eq!(missing, "array `indices.npy`: is not in the archive, which has indptr.npy");
}

#[test]
fn arrays_of_another_kind_are_refused() {
    let refused = |bytes: Vec<u8>| array("x", &bytes).expect_err("wrong").to_string();
    assert!(refused(npy(">i8", "(1,)", &[0; 8])).contains("write `<i8`"));
    assert!(refused(npy("<i8", "(2,)", &[0; 8])).contains("8 bytes for 2 numbers"));
    assert!(refused(npy("<i8", "(1,)", &[0xff; 8])).contains("negative"));
    assert!(refused(b"nothing of the kind".to_vec()).contains("numpy.save"));
    let features = npy("<f4", "(3, 100)", &[]);
    assert_eq!(width("features", &features, 3).expect("a table"), 100);
    assert_eq!(
        width("features", &features, 4).expect_err("rows").to_string(),
        "array `features`: has features of 3 vertices, the graph has 4"
    );
}
