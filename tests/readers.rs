//! Changed files through every reader: each is read or refused in words. No panic, and no answer that is larger than its file allows.
//!
//! An execution follows from its number alone: the file, and what is changed in it. `SKRULL_READERS=FROM..TO` plays others than the few of this
//! test and prints how many each reader took and refused; docs/reliability.md has counts. `SKRULL_READERS_OF='nccl|Arrow'` plays those of some files alone.

mod files;

use std::collections::BTreeMap;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use engine::random::{self, Stream};
use files::{FILES, File};

/// Executions of the test.
const EXECUTIONS: std::ops::Range<u64> = 0..40_000;
/// Executions between two words about how far it is, where others were asked for.
const WORD_EVERY: u64 = 1_000_000;

/// Pieces that readers look for, and numbers at the ends of what they hold.
const PIECES: [&str; 44] = [
    "0",
    "-1",
    "1e308",
    "-0.0",
    "nan",
    "18446744073709551616",
    "9223372036854775807",
    "4294967296",
    "0.5",
    "null",
    "true",
    "\"",
    "'",
    "`",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    ",",
    ":",
    ";",
    "=",
    " = ",
    "\n",
    "\r\n",
    "\t",
    " ",
    "#",
    "$",
    "${",
    "$((",
    "--",
    "\\",
    "|",
    "*",
    "\u{202e}",
    "\u{fffc}",
    "\0",
    "é",
    "[[x]]",
    "\n[a.b]\n",
    "<<EOF",
];

fn below(draw: &mut Stream, n: usize) -> usize {
    usize::try_from(draw.below(n.max(1) as u64)).expect("an index")
}

/// A place in some bytes and one behind it, a few letters on.
fn part(draw: &mut Stream, n: usize) -> std::ops::Range<usize> {
    let from = below(draw, n + 1);
    let to = from + below(draw, 40);
    from..to.min(n)
}

/// One change of a file.
fn change(bytes: &mut Vec<u8>, other: &[u8], draw: &mut Stream) {
    let range = part(draw, bytes.len());
    match draw.below(8) {
        0 => drop(bytes.drain(range)),
        1 => bytes.truncate(range.start),
        2 => {
            let again = bytes[range.clone()].to_vec();
            drop(bytes.splice(range.start..range.start, again));
        }
        3 if !bytes.is_empty() => {
            let at = below(draw, bytes.len());
            bytes[at] = bytes[at].wrapping_add(u8::try_from(draw.below(255)).expect("a byte") + 1);
        }
        4 => {
            let from = part(draw, other.len());
            drop(bytes.splice(range, other[from].to_vec()));
        }
        5 => number(bytes, draw),
        6 => {
            let piece = PIECES[below(draw, PIECES.len())].bytes();
            drop(bytes.splice(range, piece));
        }
        _ => {
            let piece = PIECES[below(draw, PIECES.len())].bytes();
            drop(bytes.splice(range.start..range.start, piece));
        }
    }
}

/// A number of the file in place of which another one stands.
fn number(bytes: &mut Vec<u8>, draw: &mut Stream) {
    let starts: Vec<usize> = (0..bytes.len())
        .filter(|at| bytes[*at].is_ascii_digit() && (*at == 0 || !bytes[at - 1].is_ascii_digit()))
        .collect();
    if starts.is_empty() {
        return;
    }
    let from = starts[below(draw, starts.len())];
    let n = bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let piece = PIECES[below(draw, 9)].bytes();
    drop(bytes.splice(from..from + n, piece));
}

/// The file of an execution, and what stands in it; `None` where its name has none of the words that were asked for.
fn execution(number: u64, words: &[String]) -> Option<(&'static File, Vec<u8>)> {
    let mut draw = random::stream(number, "readers");
    // A file with a share of 1 in n is taken as often as n says, so that long files do not take all of the time.
    let file = loop {
        let file = &FILES[below(&mut draw, FILES.len())];
        if draw.below(file.one_in) == 0 {
            break file;
        }
    };
    if !words.is_empty() && !words.iter().any(|word| file.name.contains(word)) {
        return None;
    }
    let mut bytes = (file.bytes)();
    let other = (FILES[below(&mut draw, FILES.len())].bytes)();
    for _ in 0..=draw.below(4) {
        change(&mut bytes, &other, &mut draw);
    }
    Some((file, bytes))
}

/// The executions that were asked for.
fn asked() -> Option<std::ops::Range<u64>> {
    let text = std::env::var("SKRULL_READERS").ok()?;
    let (from, to) = text.split_once("..")?;
    Some(from.parse().ok()?..to.parse().ok()?)
}

#[test]
fn changed_files_are_read_or_refused_in_words() {
    let (range, is_long) = asked().map_or((EXECUTIONS, false), |range| (range, true));
    let mut counts: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    let mut wrong = Vec::new();
    let of = std::env::var("SKRULL_READERS_OF").unwrap_or_default();
    let words: Vec<String> = of.split('|').filter(|word| !word.is_empty()).map(str::to_owned).collect();
    for number in range {
        if is_long && number % WORD_EVERY == 0 {
            println!("{number}: {counts:?}, wrong: {wrong:?}");
            std::io::stdout().flush().ok();
        }
        let Some((file, bytes)) = execution(number, &words) else { continue };
        match catch_unwind(AssertUnwindSafe(|| (file.read)(&bytes))) {
            Ok(Ok(())) => counts.entry(file.name).or_default()[0] += 1,
            Ok(Err(why)) => {
                counts.entry(file.name).or_default()[1] += 1;
                if why.trim().is_empty() {
                    wrong.push(format!("{number}: {} is refused without a word", file.name));
                }
            }
            Err(_) => wrong.push(format!("{number}: {} panics", file.name)),
        }
    }
    println!("taken and refused: {counts:#?}");
    assert!(wrong.is_empty(), "{} executions went wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_file_is_read_as_it_is() {
    for file in &FILES {
        let read = (file.read)(&(file.bytes)());
        assert!(read.is_ok(), "{}: {}", file.name, read.expect_err("it is refused"));
    }
}

#[test]
fn sizes_that_no_file_holds_are_refused() {
    let header = |shape: &str| {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        let text = format!("{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}\n");
        bytes.extend(u16::try_from(text.len()).expect("short").to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes
    };
    // 2^63 times 4 numbers, and 2^61 numbers of 8 bytes: both multiply to 0 in 64 bits.
    for shape in ["(9223372036854775808, 4)", "(2305843009213693952,)"] {
        let read = graph::read::array("x", &header(shape));
        assert!(read.is_err_and(|why| why.to_string().contains("bytes for")), "{shape}");
    }
    // A directory whose first name is longer than the archive.
    let mut archive = files::npz();
    let entry = archive.windows(4).position(|window| window == b"PK\x01\x02").expect("a directory");
    archive[entry + 30..entry + 32].copy_from_slice(&[0xff, 0xff]);
    archive[entry + 46] = b'x';
    assert!(graph::read::rows(&archive).is_err_and(|why| why.to_string().contains("not in the archive")));
    // Sixteen mebibytes of one line pack a thousandfold.
    let packed = files::gzip(&"0 1\n".repeat(4 << 20), flate2::Compression::best());
    assert!(packed::plain(packed, u64::MAX).is_err_and(|why| why.to_string().contains("more than 200 times")));
}
