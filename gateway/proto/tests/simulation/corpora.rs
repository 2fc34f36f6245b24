//! Runs the committed inputs of the fuzz targets, and many random inputs, through the same oracles.
//!
//! `make fuzz` searches for new inputs. An input that caused a failure remains in `fuzz/corpus/`
//! after the fix.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::sim::{Choices, oracles};

/// Number of random inputs for each fast oracle.
const DRAWN_INPUTS: u64 = 20_000;

/// The files of a target, in their order.
fn corpus(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

fn replay(target: &str, oracle: fn(&[u8])) {
    let files = corpus(target);
    assert!(files.len() >= 10, "{target} has {} inputs", files.len());
    for file in files {
        let input = fs::read(&file).unwrap();
        let run = || oracle(&input);
        if let Err(cause) = std::panic::catch_unwind(run) {
            eprintln!("failing input: {}", file.display());
            std::panic::resume_unwind(cause);
        }
    }
}

fn draw(oracle: fn(&[u8]), length_max: usize) {
    let mut choices = Choices::Seed(1);
    for _ in 0..DRAWN_INPUTS {
        let length = choices.length(length_max);
        let input: Vec<u8> = (0..length).map(|_| choices.below(256) as u8).collect();
        if let Err(cause) = std::panic::catch_unwind(|| oracle(&input)) {
            eprintln!("failing input: {input:?}");
            std::panic::resume_unwind(cause);
        }
    }
}

#[test]
fn the_corpus_of_codec_jmux_holds() {
    replay("codec_jmux", oracles::codec_jmux);
}

#[test]
fn the_corpus_of_codec_native_holds() {
    replay("codec_native", oracles::codec_native);
}

#[test]
fn the_corpus_of_codec_native_has_every_type_of_frame() {
    use muxtunnel_proto::native::codec::{Decoded, decode};
    const TYPES: [u8; 25] = [
        0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x08, 0x09, 0x0a, 0x10, 0x11, 0x18, 0x19, 0x1a, 0x1b,
        0x1c, 0x20, 0x21, 0x22, 0x23, 0x28, 0x29, 0x2a, 0x30, 0x31,
    ];
    let is_whole = |input: &Vec<u8>| match decode(input) {
        Ok(Decoded::Incomplete { .. }) | Err(_) => false,
        Ok(_) => true,
    };
    let inputs = corpus("codec_native")
        .into_iter()
        .map(|file| fs::read(file).unwrap());
    let types: BTreeSet<u8> = inputs.filter(is_whole).map(|input| input[0]).collect();
    assert_eq!(types, BTreeSet::from(TYPES));
}

#[test]
fn the_corpus_of_kcp_holds() {
    replay("kcp", oracles::kcp);
}

#[test]
fn the_corpus_of_pair_holds() {
    replay("pair", oracles::pair);
}

#[test]
fn the_corpus_of_session_input_holds() {
    replay("session_input", oracles::session_input);
}

#[test]
fn a_session_keeps_its_bounds_whatever_its_peer_says() {
    draw(oracles::session_input, 600);
}
