//! The command lines in `--help` and `docs/cli.md` parse.

use std::collections::BTreeSet;

use clap::error::ErrorKind;

use super::*;

fn typed(line: &str) -> Result<Cli, clap::Error> {
    let words = shlex::split(line).unwrap();
    parse(PROGRAM, words.into_iter().map(OsString::from))
}

/// The command lines of `text`: indented lines, and the parts after a pipe.
fn commands(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let indented = joined.lines().filter(|line| line.starts_with("    "));
    indented
        .flat_map(|line| line.split(['|', '>', '#']))
        .map(|line| line.trim().to_owned())
        .filter(|line| line.starts_with("muxtunnel "))
        .collect()
}

/// The path of a command, such as `peer add`.
fn path(line: &str) -> String {
    let words: Vec<_> = line.split_whitespace().skip(1).collect();
    let length = if words.first() == Some(&"peer") { 2 } else { 1 };
    words[..length].join(" ")
}

fn paths() -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    let shown = Cli::command();
    let shown = shown.get_subcommands().filter(|one| !one.is_hide_set());
    for command in shown {
        let name = command.get_name();
        if command.has_subcommands() {
            paths.extend(
                command
                    .get_subcommands()
                    .map(|inner| format!("{name} {}", inner.get_name())),
            );
        } else {
            paths.insert(name.to_owned());
        }
    }
    paths
}

#[test]
fn every_command_has_examples_that_can_be_typed() {
    Cli::command().debug_assert();
    let mut shown = BTreeSet::new();
    for (_, text) in EXAMPLES {
        for line in commands(text) {
            typed(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
            shown.insert(path(&line));
        }
        assert!(
            text.lines().all(|line| line.chars().count() <= 100),
            "{text}"
        );
    }
    assert_eq!(shown, paths());
    for line in paths() {
        let help = typed(&format!("muxtunnel {line} --help")).unwrap_err();
        assert_eq!(help.kind(), ErrorKind::DisplayHelp);
        assert!(help.to_string().contains("Examples:\n"), "{line}");
    }
}

#[test]
fn the_page_has_every_command_and_all_of_it_can_be_typed() {
    let page = include_str!("../../../docs/cli.md");
    let lines = commands(page);
    for line in &lines {
        typed(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
    let shown: BTreeSet<_> = lines.iter().map(|line| path(line)).collect();
    assert_eq!(shown, paths());
    let shown = Cli::command();
    let shown = shown.get_subcommands().filter(|one| !one.is_hide_set());
    for command in shown {
        for option in command.get_arguments().filter_map(|one| one.get_long()) {
            assert!(
                page.contains(&format!("--{option}")),
                "docs/cli.md lacks --{option}"
            );
        }
    }
}

#[test]
fn usage_is_that_of_the_name_that_was_called() {
    for (called, wanted) in [
        ("/usr/local/bin/muxtunnel", PROGRAM),
        ("kubectl-muxtunnel", PLUGIN),
        ("/krew/bin/kubectl-muxtunnel", PLUGIN),
    ] {
        assert_eq!(program(Some(OsStr::new(called))), wanted, "{called}");
        let help = command(wanted).render_long_help().to_string();
        assert!(help.contains(&format!("Usage: {wanted} ")), "{help}");
        assert!(
            help.contains(&format!("    {wanted} status -A\n")),
            "{help}"
        );
    }
    let words = ["kubectl-muxtunnel", "check", "--help"].map(OsString::from);
    let help = parse(PLUGIN, words).unwrap_err().to_string();
    assert!(help.contains("Usage: kubectl muxtunnel check"), "{help}");
    assert!(!help.contains("    muxtunnel"), "{help}");
}

#[test]
fn kubectls_flags_stand_anywhere() {
    for line in [
        "muxtunnel -n shop --context far status web",
        "muxtunnel status web -n shop --context far",
    ] {
        let cli = typed(line).unwrap();
        assert_eq!(cli.cluster.namespace.as_deref(), Some("shop"), "{line}");
        assert_eq!(cli.cluster.context.as_deref(), Some("far"), "{line}");
    }
}

#[test]
fn waiting_is_for_ready_unless_said_otherwise() {
    for (line, wanted) in [
        ("muxtunnel status web", WaitFor::None),
        ("muxtunnel status web --wait", WaitFor::Ready),
        ("muxtunnel status --wait web", WaitFor::Ready),
        ("muxtunnel status web --wait=available", WaitFor::Available),
        ("muxtunnel status web --wait=none", WaitFor::None),
    ] {
        let Command::Status(args) = typed(line).unwrap().command else {
            panic!("{line}");
        };
        assert_eq!(
            (args.wait, args.object),
            (wanted, "tunnel/web".parse().ok()),
            "{line}"
        );
    }
}

#[test]
fn an_object_has_a_kind_or_is_a_tunnel() {
    for (text, kind) in [
        ("web", Kind::Tunnel),
        ("exit/web", Kind::Exit),
        ("mr/web", Kind::Rendezvous),
        ("muxexit.muxtunnel.dev/web", Kind::Exit),
    ] {
        let name = "web".to_owned();
        assert_eq!(text.parse(), Ok(ObjectName { kind, name }));
    }
    for text in ["", "exit/", "pod/web", "exit/a/b"] {
        assert!(text.parse::<ObjectName>().is_err(), "{text}");
    }
}

#[test]
fn what_does_not_go_together_is_usage() {
    for line in [
        "muxtunnel",
        "muxtunnel status web -A",
        "muxtunnel status -A -n shop",
        "muxtunnel status web --wait=soon",
        "muxtunnel status web --timeout 5",
        "muxtunnel status --exit-context far",
        "muxtunnel status pod/web",
        "muxtunnel status -o narrow",
        "muxtunnel status web --watch --wait",
        "muxtunnel status web --no-headers",
        "muxtunnel status --color sometimes",
        "muxtunnel check -o wide",
        "muxtunnel explain -o name",
        "muxtunnel explain MT0308 --no-headers",
        "muxtunnel check --only nodes",
        "muxtunnel check --gateway-image i",
        "muxtunnel peer",
        "muxtunnel peer add laptop --exit web",
        "muxtunnel peer add laptop --exit web --key k --ttl 1h",
        "muxtunnel peer add laptop --exit web --key k --expires tomorrow",
        "muxtunnel peer list -A -n shop",
        "muxtunnel link web --from near --to far",
        "muxtunnel link svc/web --from near",
        "muxtunnel link svc/web --from near --to far --service-type NodePort",
        "muxtunnel link svc/web --from near --to far --port 0",
        "muxtunnel connect web",
        "muxtunnel connect web -L 8080:web",
        "muxtunnel connect -D 1080",
    ] {
        let error = typed(line).map(|cli| format!("{cli:?}")).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line}: {error}");
    }
}
