//! What `--help` of each command shows at its end. A test types it.

/// Examples by the path of their command, `muxtunnel` standing for the program.
pub(super) const EXAMPLES: &[(&[&str], &str)] = &[
    (
        &[],
        "\
Examples:
  What is there, and how is it?
    muxtunnel status -A
  Which faults are there, and what corrects them?
    muxtunnel check -A
  What does a code mean?
    muxtunnel explain MT0308",
    ),
    (
        &["status"],
        "\
Examples:
  All tunnels of the namespace shop:
    muxtunnel status -n shop
  One, once it works; status 4 if it does not within two minutes:
    muxtunnel status web -n shop --wait --timeout 2m
  Its entry here and its exit in another cluster, in one view:
    muxtunnel status web -n shop --peer-context far --peer backend/web
  Its state, and each change of it, until you end it with Ctrl-C:
    muxtunnel status web -n shop --watch
  With the reasons, the bottlenecks and the addresses, in colour in a pager:
    muxtunnel status -A -o wide --color always | less -SR
  Its round-trip time, for a script:
    muxtunnel status web -n shop -o json | jq .carriers.rttMilliseconds
  The names of all that are not ready, and all as the arguments of kubectl:
    muxtunnel status --no-headers | awk '$3 != \"True\" { print $1 }'
    muxtunnel status -o name | xargs kubectl describe",
    ),
    (
        &["check"],
        "\
Examples:
  Before the chart is installed:
    muxtunnel check --pre
  Everything, in all namespaces; status 3 if there are findings:
    muxtunnel check -A
  What do the nodes let gateways have? Makes short-lived pods in the namespace tests:
    muxtunnel check --only node --probe -n tests
  Before the chart is installed, with images of your own:
    muxtunnel check --pre --only node --probe -n tests \\
      --gateway-image registry.example.com/muxtunnel/gateway:0.1.0 \\
      --netem-image registry.example.com/muxtunnel/netem:0.1.0",
    ),
    (
        &["explain"],
        "\
Examples:
  One code, by its number or its name:
    muxtunnel explain MT0308
    muxtunnel explain SysctlForbidden
  All of them:
    muxtunnel explain
  All of them, for a script:
    muxtunnel explain --no-headers | grep Sysctl",
    ),
    (
        &["token"],
        "\
Examples:
  In the exit's cluster, then in the entry's:
    muxtunnel token issue web -n backend --context far --output web.join.yaml
    muxtunnel token redeem web.join.yaml --name web-join -n shop --context near",
    ),
    (
        &["token", "issue"],
        "\
Examples:
  Into a file, to be handed over by a way that only the two of you can read:
    muxtunnel token issue web -n backend --output web.join.yaml
  Straight into the other cluster:
    muxtunnel token issue web -n backend --context far \\
      | muxtunnel token redeem - --name web-join -n shop --context near",
    ),
    (
        &["token", "redeem"],
        "\
Examples:
  Check the file and make the Secret web-join of it:
    muxtunnel token redeem web.join.yaml --name web-join -n shop",
    ),
    (
        &["token", "revoke"],
        "\
Examples:
  Ask first:
    muxtunnel token revoke web -n backend
  In a script; status 4 if the operator has not done it within two minutes:
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
