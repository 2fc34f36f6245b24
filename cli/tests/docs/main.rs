//! Checks that the names in README.md and `docs` exist: linked files and headings, flags, fields,
//! metrics, codes, files.
//!
//! The tests read names from code spans (`` `name` ``) and from command lines. A name of another
//! program is in [`foreign`].

#![allow(clippy::unwrap_used, clippy::panic, reason = "shared by tests")]

mod bounds;
mod foreign;
mod history;
mod page;
mod tree;

use std::collections::BTreeSet;
use std::path::Path;

use clap::CommandFactory;
use muxtunnel_codes::Code;
use muxtunnel_gateway_config::Config;
use page::{Page, file, root};
use tree::Tree;

/// Fails with one line for each problem. Also fails if the search found fewer than `least` names,
/// because then the search itself is wrong.
fn judge(found: usize, least: usize, problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
    assert!(found >= least, "only {found} names found");
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let (mut found, mut problems) = (0, Vec::new());
    for page in page::all() {
        for link in page.links() {
            if link.contains("://") {
                continue;
            }
            found += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => page.path.clone(),
                path => page.folder().join(path),
            };
            if !root().join(&target).exists() {
                problems.push(format!("{page}: {link}: file not found"));
            } else if !anchor.is_empty() && !Page::read(&target).anchors().contains(anchor) {
                problems.push(format!("{page}: {link}: heading not found"));
            }
        }
    }
    judge(found, 100, &problems);
}

#[test]
fn every_code_is_one_of_ours() {
    let known: BTreeSet<String> = Code::ALL.iter().map(Code::to_string).collect();
    let (mut found, mut problems) = (0, Vec::new());
    for page in page::own() {
        for word in page.text.split(|c: char| !c.is_ascii_alphanumeric()) {
            let Some(number) = word.strip_prefix("MT") else {
                continue;
            };
            if number.len() == 4 && number.bytes().all(|byte| byte.is_ascii_digit()) {
                found += 1;
                if !known.contains(word) {
                    problems.push(format!("{page}: {word}"));
                }
            }
        }
    }
    judge(found, 200, &problems);
}

#[test]
fn every_metric_is_exported() {
    let sources = page::texts(&root().join("gateway/src/observe"), "rs");
    let of_gateways = sources.iter().flat_map(|text| metrics(text, "muxgate_"));
    // The names in the rows of this page are correct, because a test of the operator compares them
    // with the exported metrics.
    let page = file("docs/metrics.md");
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| `muxtunnel_"));
    let of_operator = rows.flat_map(|row| metrics(row, "muxtunnel_"));
    let exported: BTreeSet<String> = of_gateways.chain(of_operator).collect();
    let (mut found, mut problems) = (0, Vec::new());
    for page in page::own() {
        for prefix in ["muxgate_", "muxtunnel_"] {
            for name in metrics(&page.text, prefix) {
                found += 1;
                let base = ["_total", "_bucket", "_count", "_sum"]
                    .iter()
                    .find_map(|suffix| name.strip_suffix(suffix));
                let names = [Some(name.as_str()), base];
                let known = names.iter().flatten().any(|name| exported.contains(*name));
                // `muxgate_handshakes_` names every metric with this prefix.
                let begins = |one: &String| name.ends_with('_') && one.starts_with(&name);
                if !known && !exported.iter().any(begins) {
                    problems.push(format!("{page}: {name}"));
                }
            }
        }
    }
    judge(found, 60, &problems);
}

/// The words of `text` that begin with `prefix`.
fn metrics(text: &str, prefix: &str) -> Vec<String> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.len() > prefix.len() && word.starts_with(prefix))
        .map(str::to_owned)
        .collect()
}

/// The command lines of MuxTunnel's programs.
fn programs() -> [clap::Command; 2] {
    let mut gateway = muxgate::cli::Cli::command().name("muxgate");
    let mut tunnel = muxtunnel_cli::args::command(muxtunnel_cli::args::PROGRAM);
    gateway.build();
    tunnel.build();
    [gateway, tunnel]
}

/// All long options of a command and its subcommands.
fn flags(command: &clap::Command) -> BTreeSet<String> {
    let own = command.get_arguments().flat_map(|argument| {
        let aliases = argument.get_all_aliases().unwrap_or_default();
        argument.get_long().into_iter().chain(aliases)
    });
    let own = own.map(str::to_owned);
    own.chain(command.get_subcommands().flat_map(flags))
        .collect()
}

#[test]
fn every_flag_of_a_command_line_is_one_of_its_subcommand() {
    let programs = programs();
    let (mut found, mut problems) = (0, Vec::new());
    for page in page::own() {
        for line in page.command_lines() {
            let Some(words) = shlex::split(&line) else {
                continue;
            };
            let program = words.first().map(String::as_str).unwrap_or_default();
            let Some(program) = programs.iter().find(|known| known.get_name() == program) else {
                continue;
            };
            let mut command = program;
            let mut known: BTreeSet<String> = BTreeSet::new();
            for word in &words[1..] {
                if ["|", ">", "#", "&&", ";"].contains(&word.as_str()) {
                    break;
                }
                if let Some(inner) = command.find_subcommand(word) {
                    command = inner;
                } else if let Some(flag) = word.strip_prefix("--") {
                    let (flag, _) = flag.split_once('=').unwrap_or((flag, ""));
                    if known.is_empty() {
                        known = flags(command);
                    }
                    found += 1;
                    if !known.contains(flag) {
                        problems.push(format!("{page}: --{flag} in: {line}"));
                    }
                }
            }
        }
    }
    judge(found, 150, &problems);
}

#[test]
fn every_flag_in_a_code_span_is_one_of_our_programs() {
    let mut known: BTreeSet<String> = programs().iter().flat_map(flags).collect();
    for path in foreign::ARGUMENTS {
        known.extend(options(&file(path)));
    }
    let (mut found, mut problems) = (0, Vec::new());
    for page in page::own() {
        for span in page.code_spans() {
            let Some(flag) = span.strip_prefix("--") else {
                continue;
            };
            let end = flag.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
            let flag = &flag[..end.unwrap_or(flag.len())];
            found += 1;
            if !known.contains(flag) && !foreign::FLAGS.contains(&flag) {
                problems.push(format!("{page}: `--{flag}`"));
            }
        }
    }
    judge(found, 40, &problems);
}

/// The long options in a source text: names in string literals, and names of fields.
fn options(source: &str) -> Vec<String> {
    let written = source.split("long = \"").skip(1);
    let written = written.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()));
    let fields = source
        .lines()
        .filter_map(|line| line.trim().split_once(": "));
    let fields = fields.map(|(field, _)| field.rsplit(' ').next().unwrap_or_default());
    let fields = fields.map(|field| field.replace('_', "-"));
    written.chain(fields).collect()
}

/// Whether a gateway's configuration has the field. The parser refuses unknown fields, so the test
/// parses a file with the field for each role and security mode. The field exists if the parser
/// accepts it in at least one file.
fn is_of_the_configuration(path: &[&str]) -> bool {
    let lists = ["forwards[]", "reverseForwards[]", "proxies[]"];
    let mut of_an_item = lists.iter().map(|list| [&[*list], path].concat());
    is_of_the_file(path) || of_an_item.any(|path| is_of_the_file(&path))
}

fn is_of_the_file(path: &[&str]) -> bool {
    let field = |inner: String, name: &&str| match name.strip_suffix("[]") {
        Some(list) => format!("{{{list}: [{inner}]}}"),
        None => format!("{{{name}: {inner}}}"),
    };
    let value = path.iter().rev().fold("null".to_owned(), field);
    let value = value
        .strip_prefix('{')
        .and_then(|text| text.strip_suffix('}'));
    let value = value.unwrap_or_default();
    let modes = ["None", "PublicKeys", "Certificates", "ServerTls", "SSH"];
    let documents = ["Entry", "Exit", "Rendezvous"].iter().flat_map(|role| {
        let within = modes.iter().map(move |mode| {
            let inner = value.strip_prefix("security: {").unwrap_or_default();
            format!("{{role: {role}, security: {{mode: {mode}, {inner}}}")
        });
        let within = within.filter(|_| value.starts_with("security: {"));
        within.chain([format!("{{role: {role}, {value}}}")])
    });
    let refused = |text: String| {
        let parsed = serde_yaml::from_str::<Config>(&text);
        parsed.is_err_and(|error| error.to_string().contains("unknown field"))
    };
    documents.map(refused).any(|refused| !refused)
}

#[test]
fn the_configuration_refuses_unknown_fields_at_every_level() {
    for (path, known) in [
        ("memory.receive", true),
        ("security.peers", true),
        ("security.allowAnonymous", true),
        ("forwards[].limits.bitsPerSecond", true),
        ("limits.opensPerSecond", true),
        ("memory.recieve", false),
        ("security.peer", false),
        ("forwards[].limits.rate", false),
        ("memories.receive", false),
    ] {
        let path: Vec<_> = path.split('.').collect();
        assert_eq!(is_of_the_configuration(&path), known, "{path:?}");
    }
}

#[test]
fn every_field_in_a_code_span_is_of_an_object_of_the_configuration_or_of_the_chart() {
    let mut trees: Vec<Tree> = [
        "muxtunnels",
        "muxexits",
        "muxrendezvous",
        "muxpeers",
        "muxbenchmarks",
        "muxgrants",
        "muxclasses",
    ]
    .iter()
    .map(|name| Tree::of_definition(&file(&format!("crds/yaml/{name}.yaml"))))
    .collect();
    trees.push(Tree::of_values(&file("charts/muxtunnel/values.yaml")));
    let (mut found, mut problems) = (0, Vec::new());
    for mut page in page::own() {
        if page.path.ends_with("upgrading.md") {
            page.text = without_first_cells(&page.text);
        }
        for span in page.code_spans() {
            let Some(path) = tree::path(&span) else {
                continue;
            };
            found += 1;
            let known = trees.iter().any(|tree| tree.has(&path))
                || is_of_the_configuration(&path)
                || foreign::FIELDS.contains(&path.join(".").as_str());
            if !known {
                problems.push(format!("{page}: `{span}`"));
            }
        }
    }
    judge(found, 150, &problems);
}

/// The text without the first cells of tables, which have the names of former fields.
fn without_first_cells(text: &str) -> String {
    let rest = |line: &str| match line.strip_prefix("| ") {
        Some(row) => format!("|{}", row.split_once(" |").map_or("", |(_, rest)| rest)),
        None => line.to_owned(),
    };
    text.lines().map(rest).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_file_in_a_code_span_exists() {
    let files = page::files();
    let (mut found, mut problems) = (0, Vec::new());
    for page in page::own() {
        for span in page.code_spans() {
            for path in page::paths(&span) {
                found += 1;
                let suffix = format!("/{path}");
                let known = root().join(&path).exists()
                    || root().join(page.folder()).join(&path).exists()
                    || files.iter().any(|file| file.ends_with(&suffix))
                    || foreign::PATHS.iter().any(|known| path.starts_with(known));
                if !known {
                    problems.push(format!("{page}: `{path}`"));
                }
            }
        }
    }
    judge(found, 200, &problems);
}

#[test]
fn the_tests_read_the_pages_that_a_reader_opens_first() {
    let own: BTreeSet<_> = page::own().into_iter().map(|page| page.path).collect();
    for path in [
        "README.md",
        "CHANGELOG.md",
        "docs/gateway.md",
        "docs/quickstart.md",
    ] {
        assert!(own.contains(Path::new(path)), "{path}");
    }
}
