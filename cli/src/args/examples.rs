//! The examples at the end of each command's `--help`. A test parses them.

/// Examples by the path of their command. The program replaces `muxtunnel` in them by its own name.
pub(super) const EXAMPLES: &[(&[&str], &str)] = &[
    (
        &[],
        "\
Examples:
  Show all tunnels and their state:
    muxtunnel status -A
  Find faults and their fixes:
    muxtunnel check -A
  Explain a code:
    muxtunnel explain MT0308",
    ),
    (
        &["status"],
        "\
Examples:
  All tunnels of the namespace shop:
    muxtunnel status -n shop
  One tunnel, as soon as it is Ready; exit status 4 after two minutes:
    muxtunnel status web -n shop --wait --timeout 2m
  The entry here and the exit in another cluster, in one view:
    muxtunnel status web -n shop --peer-context far --peer backend/web
  The state, and the state again at each change, until you press Ctrl-C:
    muxtunnel status web -n shop --watch
  With the reasons, the bottlenecks and the addresses, in colour in a pager:
    muxtunnel status -A -o wide --color always | less -SR
  The round-trip time, for a script:
    muxtunnel status web -n shop -o json | jq .carriers.rttMilliseconds
  The names of tunnels that are not Ready; all tunnels as arguments of kubectl:
    muxtunnel status --no-headers | awk '$3 != \"True\" { print $1 }'
    muxtunnel status -o name | xargs kubectl describe",
    ),
    (
        &["check"],
        "\
Examples:
  Before the chart is installed:
    muxtunnel check --pre
  All checks, in all namespaces; exit status 3 if there are findings:
    muxtunnel check -A
  Test sysctls and kernel features of the nodes, with short-lived pods in the namespace tests:
    muxtunnel check --only node --probe -n tests
  The same test before the chart is installed, with your own images:
    muxtunnel check --pre --only node --probe -n tests \\
      --gateway-image registry.example.com/muxtunnel/gateway:0.1.0 \\
      --netem-image registry.example.com/muxtunnel/netem:0.1.0",
    ),
    (
        &["explain"],
        "\
Examples:
  One code, by number or by name:
    muxtunnel explain MT0308
    muxtunnel explain SysctlForbidden
  All codes:
    muxtunnel explain
  All codes, for a script:
    muxtunnel explain --no-headers | grep Sysctl",
    ),
    (
        &["token"],
        "\
Examples:
  Issue a bundle in the exit's cluster, then redeem it in the entry's cluster:
    muxtunnel token issue web -n backend --context far --filename web.join.yaml
    muxtunnel token redeem web.join.yaml --name web-join -n shop --context near",
    ),
    (
        &["token", "issue"],
        "\
Examples:
  Write the bundle to a file, and send the file over a confidential channel:
    muxtunnel token issue web -n backend --filename web.join.yaml
  Pass the bundle directly to the entry's cluster:
    muxtunnel token issue web -n backend --context far \\
      | muxtunnel token redeem - --name web-join -n shop --context near",
    ),
    (
        &["token", "redeem"],
        "\
Examples:
  Check the file and create the Secret web-join from it:
    muxtunnel token redeem web.join.yaml --name web-join -n shop",
    ),
    (
        &["token", "revoke"],
        "\
Examples:
  Ask for confirmation, then revoke:
    muxtunnel token revoke web -n backend
  In a script, without a question; exit status 4 after two minutes:
    muxtunnel token revoke web -n backend --yes --wait --timeout 2m",
    ),
    (
        &["completions"],
        "\
Examples:
  For bash:
    muxtunnel completions bash > ~/.local/share/bash-completion/completions/muxtunnel",
    ),
];
