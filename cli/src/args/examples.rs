//! The examples at the end of each command's `--help`. A test parses them.

/// Examples by the path of their command. The program replaces `muxtunnel` in them by its own name.
pub(super) const EXAMPLES: &[(&[&str], &str)] = &[
    (
        &[],
        "\
Examples:
  Show all tunnels and exits, and their state:
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
  All tunnels, exits and rendezvous of the namespace shop:
    muxtunnel status -n shop
  One tunnel, as soon as it is Ready; exit status 4 after two minutes:
    muxtunnel status web -n shop --wait --timeout 2m
  The exit web with its peers:
    muxtunnel status exit/web -n backend
  A tunnel here and its exit in another cluster, in one view:
    muxtunnel status web -n shop --exit-context far --exit backend/web
  The state, and the state again at each change, until you press Ctrl-C:
    muxtunnel status web -n shop --watch
  With the reasons, the bottlenecks and the addresses, in colour in a pager:
    muxtunnel status -A -o wide --color always | less -SR
  The number of carriers, for a script:
    muxtunnel status web -n shop -o json | jq .object.carriers.connected
  The names of objects that are not Ready; all objects as arguments of kubectl:
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
        &["link"],
        "\
Examples:
  The Service web of the context far, for clients in the context near:
    muxtunnel link svc/web --from near --to far
  Its port https, at port 8443 of the entry, through a node port of the host far.example.com:
    muxtunnel link svc/web:https --from near --to far -n shop --to-namespace backend \\
      --port 8443 --service-type NodePort --address far.example.com:31234
  A second Service through the same exit, which must permit the target:
    muxtunnel link svc/db:5432 --from near --to far --exit web",
    ),
    (
        &["connect"],
        "\
Examples:
  A database behind the exit web, at port 5432 of this host, for eight hours:
    muxtunnel connect web -n backend -L 5432:db.backend.svc:5432
  A SOCKS and HTTP proxy for one hour:
    muxtunnel connect web -n backend -D 1080 --for 1h
  Forward port 9000 of the exit to port 3000 of this host:
    muxtunnel connect web -n backend -R 9000:localhost:3000",
    ),
    (
        &["peer"],
        "\
Examples:
  Permit an entry to use the exit web, then show its state:
    muxtunnel peer add laptop --exit web --key mte1... -n backend
    muxtunnel peer list --exit web -n backend",
    ),
    (
        &["peer", "add"],
        "\
Examples:
  For eight hours, to one target; the operator deletes the MuxPeer one day later:
    muxtunnel peer add laptop --exit web --key mte1... --expires 8h --ttl 24h \\
      --allow db.backend.svc:5432
  A site that also serves the exit's port named webhook:
    muxtunnel peer add site-a --exit web --key mte1... --reverse-port webhook",
    ),
    (
        &["peer", "list"],
        "\
Examples:
  The peers of all exits:
    muxtunnel peer list -A
  The peers of one exit, with whole keys:
    muxtunnel peer list --exit web -n backend -o wide",
    ),
    (
        &["peer", "suspend"],
        "\
Examples:
  End the carriers of a peer, and refuse it:
    muxtunnel peer suspend laptop -n backend",
    ),
    (
        &["peer", "resume"],
        "\
Examples:
  Accept the peer again:
    muxtunnel peer resume laptop -n backend",
    ),
    (
        &["peer", "remove"],
        "\
Examples:
  Delete the MuxPeer:
    muxtunnel peer remove laptop -n backend",
    ),
    (
        &["completions"],
        "\
Examples:
  For bash:
    muxtunnel completions bash > ~/.local/share/bash-completion/completions/muxtunnel",
    ),
];
