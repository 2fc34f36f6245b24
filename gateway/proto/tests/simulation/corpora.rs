//! Runs the committed inputs of the fuzz targets, and many random inputs, through the same oracles.
//!
//! `make fuzz` searches for new inputs. An input that caused a failure remains in `fuzz/corpus/`
//! after the fix.

use std::fs;
use std::path::Path;

use crate::sim::{Choices, oracles};

/// Number of random inputs for each fast oracle.
const DRAWN_INPUTS: u64 = 20_000;

fn replay(target: &str, oracle: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
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
