//! The commits that pages and figures name are in the history of the checkout.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use super::page::{self, file, root};

/// Words of hexadecimal digits that are no commits.
const OTHERS: &[&str] = &["ed25519"];
/// The fewest digits of an abbreviated commit.
const DIGITS_MIN: usize = 7;
/// The digits of a whole commit.
const DIGITS: usize = 40;

/// All commits of the history of `folder`'s HEAD. An error if the history is incomplete, because a
/// missing commit would then be no fault of a page.
fn history(folder: &Path) -> Result<BTreeSet<String>, String> {
    let shallow = git(folder, &["rev-parse", "--is-shallow-repository"])?;
    if shallow.trim() != "false" {
        return Err(format!(
            "{}: the clone is shallow, so its history lacks commits that pages name. \
             Run: git fetch --unshallow",
            folder.display()
        ));
    }
    let commits = git(folder, &["rev-list", "HEAD"])?;
    Ok(commits.lines().map(str::to_owned).collect())
}

fn git(folder: &Path, arguments: &[&str]) -> Result<String, String> {
    let what = format!("git {} in {}", arguments.join(" "), folder.display());
    let output = Command::new("git")
        .current_dir(folder)
        .args(arguments)
        .output()
        .map_err(|error| format!("{what}: {error}"))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{what}: {error}"));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("{what}: {error}"))
}

/// The commits that a text names: hexadecimal words with letters and digits, and any hexadecimal
/// word after the word "commit".
fn commits(text: &str) -> Vec<&str> {
    let words = text
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty());
    let mut before = "";
    let mut found = Vec::new();
    for word in words {
        let is_hex = word.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let is_long = (DIGITS_MIN..=DIGITS).contains(&word.len());
        let is_mixed = word.bytes().any(|b| b.is_ascii_digit())
            && word.bytes().any(|b| b.is_ascii_alphabetic());
        let is_named = ["commit", "commits"].contains(&before.to_lowercase().as_str());
        if is_hex && is_long && (is_mixed || is_named) && !OTHERS.contains(&word) {
            found.push(word);
        }
        before = word;
    }
    found
}

#[test]
fn every_commit_of_a_page_or_a_figure_is_in_the_history() {
    let history = history(&root()).unwrap_or_else(|error| panic!("{error}"));
    let is_known = |commit: &str| history.iter().any(|known| known.starts_with(commit));
    let pages = page::all();
    let pages = pages
        .iter()
        .map(|page| (page.to_string(), page.text.clone()));
    let figures = ["commit", "throughput.svg"].map(|name| format!("docs/figures/{name}"));
    let figures = figures.into_iter().map(|path| (path.clone(), file(&path)));
    let (mut found, mut problems) = (0, Vec::new());
    for (path, text) in pages.chain(figures) {
        for commit in commits(&text) {
            found += 1;
            if !is_known(commit) {
                problems.push(format!("{path}: commit {commit} is not in the history"));
            }
        }
    }
    super::judge(found, 50, &problems);
}

#[test]
fn commits_are_recognised() {
    let text =
        "commit 2dac920, 28c1c1b (f8df121) and commit 4497401; 4194304 bytes, ed25519, deadbeef";
    assert_eq!(commits(text), ["2dac920", "28c1c1b", "f8df121", "4497401"]);
}

#[test]
fn a_shallow_clone_is_an_error_that_names_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, shallow) = (folder.path().join("whole"), folder.path().join("shallow"));
    let run = |arguments: &[&str]| git(folder.path(), arguments).unwrap();
    run(&["init", "--quiet", "whole"]);
    for message in ["one", "two"] {
        run(&[
            "-C",
            "whole",
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@t",
            "-c",
            "commit.gpgsign=false",
            "commit",
            "--quiet",
            "--allow-empty",
            "--message",
            message,
        ]);
    }
    assert_eq!(history(&whole).unwrap().len(), 2);
    let from = format!("file://{}", whole.display());
    run(&["clone", "--quiet", "--depth=1", &from, "shallow"]);
    let error = history(&shallow).unwrap_err();
    assert!(error.contains("git fetch --unshallow"), "{error}");
    assert!(history(&folder.path().join("missing")).is_err());
}

#[test]
fn pages_name_the_oldest_rust_that_works() {
    let manifest = file("Cargo.toml");
    let version = manifest
        .split_once("rust-version = \"")
        .and_then(|(_, rest)| rest.split_once('"'))
        .unwrap()
        .0;
    let wanted = format!("Rust {version} or newer");
    for path in ["README.md", "CONTRIBUTING.md", "docs/quickstart.md"] {
        let text = file(path).replace('\n', " ");
        assert!(text.contains(&wanted), "{path}: expected {wanted:?}");
    }
}
