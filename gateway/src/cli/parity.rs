//! Checks that each field of the configuration file has a flag, or that the table below states why
//! it has none.

use std::collections::{BTreeMap, BTreeSet};

use clap::CommandFactory;
use muxtunnel_gateway_config::Config;

use super::Cli;
use On::{File, Flag, Positional};

/// How a field is set on the command line.
#[derive(Debug, Clone, Copy)]
enum On {
    /// By a flag.
    Flag(&'static str),
    /// By the subcommand.
    Positional,
    /// Only in a file, for this reason.
    File(&'static str),
}

/// The mappings of a file: the path of each mapping, and a document with an unknown field in it.
const MAPPINGS: &[(&str, &str)] = &[
    ("", r#"{"?": 1}"#),
    ("security.", r#"{"security": {"?": 1}}"#),
    (
        "security.peers[].",
        r#"{"security": {"peers": [{"?": 1}]}}"#,
    ),
    (
        "security.peers[].limits.",
        r#"{"security": {"peers": [{"limits": {"?": 1}}]}}"#,
    ),
    ("webSocket.", r#"{"webSocket": {"?": 1}}"#),
    ("connect[].", r#"{"connect": [{"?": 1}]}"#),
    (
        "connect[].webSocket.",
        r#"{"connect": [{"webSocket": {"?": 1}}]}"#,
    ),
    (
        "connect[].rendezvous.",
        r#"{"connect": [{"rendezvous": {"?": 1}}]}"#,
    ),
    ("rendezvous[].", r#"{"rendezvous": [{"?": 1}]}"#),
    ("members[].", r#"{"members": [{"?": 1}]}"#),
    ("ssh.", r#"{"ssh": {"?": 1}}"#),
    ("network.", r#"{"network": {"?": 1}}"#),
    ("network.peers[].", r#"{"network": {"peers": [{"?": 1}]}}"#),
    ("network.dns.", r#"{"network": {"dns": {"?": 1}}}"#),
    ("pool.", r#"{"pool": {"?": 1}}"#),
    ("timeouts.", r#"{"timeouts": {"?": 1}}"#),
    ("memory.", r#"{"memory": {"?": 1}}"#),
    ("limits.", r#"{"limits": {"?": 1}}"#),
    ("drain.", r#"{"drain": {"?": 1}}"#),
    ("forwards[].", r#"{"forwards": [{"?": 1}]}"#),
    (
        "forwards[].targets[].",
        r#"{"forwards": [{"targets": [{"?": 1}]}]}"#,
    ),
    (
        "forwards[].proxyProtocol.",
        r#"{"forwards": [{"proxyProtocol": {"?": 1}}]}"#,
    ),
    (
        "forwards[].limits.",
        r#"{"forwards": [{"limits": {"?": 1}}]}"#,
    ),
    ("reverseForwards[].", r#"{"reverseForwards": [{"?": 1}]}"#),
    (
        "reverseForwards[].targets[].",
        r#"{"reverseForwards": [{"targets": [{"?": 1}]}]}"#,
    ),
    (
        "reverseForwards[].limits.",
        r#"{"reverseForwards": [{"limits": {"?": 1}}]}"#,
    ),
    ("proxies[].", r#"{"proxies": [{"?": 1}]}"#),
    (
        "proxies[].fallbackTargets[].",
        r#"{"proxies": [{"fallbackTargets": [{"?": 1}]}]}"#,
    ),
    (
        "proxies[].limits.",
        r#"{"proxies": [{"limits": {"?": 1}}]}"#,
    ),
];

const SECOND_EXIT: On = File("a second exit with `--protocol SSH` does the same");
const NETWORK_PEERS: On =
    File("the list has an identity and networks for each entry, which do not fit into a flag");
const CONNECT_HOST: On = File("the address in `ws://HOST:PORT/PATH` is the host");
const PEER: On = File("the file of `--peers` has names and times, and `--peer` has only a key");
const SECOND_RENDEZVOUS: On = File("the flags have one rendezvous, which needs no name");
const MEMBER: On =
    File("the file of `--members` has names and times, and `--member` has only a key");
const LISTENER: On = Flag("forward");
const REVERSE: On = Flag("reverse");
const PROXY: On = Flag("auto");
const NAME: On =
    File("the flags have no syntax for a name; the address of the listener is the name");

const FIELDS: &[(&str, On)] = &[
    ("role", Positional),
    ("protocol", Flag("protocol")),
    ("packetBytes", Flag("packet-bytes")),
    ("transport", Flag("transport")),
    ("congestionControl", Flag("congestion-control")),
    ("livenessSeconds", Flag("liveness-seconds")),
    ("connect[].name", Flag("connect")),
    ("connect[].order", Flag("connect")),
    ("connect[].address", Flag("connect")),
    ("connect[].command", Flag("connect-command")),
    ("connect[].publicKeys", Flag("peer")),
    ("connect[].certificateNames", Flag("peer")),
    ("connect[].webSocket.host", CONNECT_HOST),
    ("connect[].webSocket.scheme", Flag("connect")),
    ("proxy", Flag("proxy")),
    ("listen", Flag("listen")),
    ("trustedProxies", Flag("trusted-proxy")),
    ("admin", Flag("admin")),
    ("adminHosts", Flag("admin-host")),
    ("allow", Flag("allow")),
    ("allowListen", Flag("allow-listen")),
    ("workers", Flag("workers")),
    ("resume", Flag("no-resume")),
    ("splice", Flag("no-splice")),
    ("security.mode", Flag("security")),
    ("security.certificate", Flag("tls-certificate")),
    ("security.key", Flag("tls-key")),
    ("security.ca", Flag("tls-ca")),
    ("security.privateKeyFiles", Flag("key")),
    ("security.peersFile", Flag("peers")),
    ("security.peers[].name", PEER),
    ("security.peers[].publicKeys", Flag("peer")),
    ("security.peers[].certificateNames", Flag("peer")),
    ("security.peers[].suspend", PEER),
    ("security.peers[].expirationTime", PEER),
    ("security.peers[].allow", PEER),
    ("security.peers[].deny", PEER),
    ("security.peers[].limits.streams", PEER),
    ("security.peers[].limits.opensPerSecond", PEER),
    ("security.peers[].limits.bitsPerSecond", PEER),
    ("security.peers[].limits.carriers", PEER),
    ("security.allowAnonymous", Flag("allow-anonymous")),
    ("security.serverName", Flag("tls-server-name")),
    ("security.hostKeys", Flag("ssh-host-key")),
    ("security.authorizedKeys", Flag("ssh-authorized-keys")),
    ("security.trustedUserCAKeys", Flag("ssh-user-ca")),
    ("security.algorithms", Flag("ssh-algorithms")),
    ("security.user", Flag("ssh-user")),
    ("security.knownHosts", Flag("ssh-known-hosts")),
    ("security.hostKeyAlias", Flag("ssh-host-key-alias")),
    ("webSocket.path", Flag("connect")),
    ("webSocket.origins", Flag("allow-origin")),
    ("connect[].rendezvous.address", Flag("rendezvous")),
    ("connect[].rendezvous.publicKeys", Flag("rendezvous-key")),
    ("rendezvous[].name", SECOND_RENDEZVOUS),
    ("rendezvous[].address", Flag("rendezvous")),
    ("rendezvous[].publicKeys", Flag("rendezvous-key")),
    ("members[].name", MEMBER),
    ("members[].publicKeys", Flag("member")),
    ("members[].suspend", MEMBER),
    ("members[].expirationTime", MEMBER),
    ("ssh.listen", SECOND_EXIT),
    ("ssh.hostKeys", SECOND_EXIT),
    ("ssh.authorizedKeys", SECOND_EXIT),
    ("ssh.trustedUserCAKeys", SECOND_EXIT),
    ("ssh.algorithms", SECOND_EXIT),
    ("network.device", Flag("device")),
    ("network.node", Flag("device-node")),
    ("network.entryCIDRs", Flag("entry-cidr")),
    ("network.exitCIDRs", Flag("exit-cidr")),
    ("network.mtu", Flag("mtu")),
    ("network.offloads", Flag("no-offloads")),
    ("network.queues", Flag("queues")),
    ("network.pool", Flag("address-pool")),
    ("network.dns.servers", Flag("dns-server")),
    ("network.dns.domains", Flag("dns-domain")),
    ("network.setAddresses", Flag("device-address")),
    ("network.dnsFile", Flag("dns-file")),
    (
        "network.peersReachEachOther",
        Flag("peers-reach-each-other"),
    ),
    ("network.allow", Flag("allow-packets")),
    ("network.deny", Flag("deny-packets")),
    ("network.peers[].identity", NETWORK_PEERS),
    ("network.peers[].CIDRs", NETWORK_PEERS),
    ("deny", Flag("deny")),
    (
        "protectedCIDRs",
        File("the operator writes the cluster's addresses into this field"),
    ),
    ("nat64Prefixes", Flag("nat64-prefix")),
    ("pool.min", Flag("carriers")),
    ("pool.max", Flag("carriers")),
    ("timeouts.idleSeconds", Flag("idle-timeout")),
    ("timeouts.halfOpenSeconds", Flag("half-open-timeout")),
    ("timeouts.keepaliveSeconds", Flag("keepalive")),
    ("memory.receive", Flag("memory-receive")),
    ("memory.retain", Flag("memory-retain")),
    ("memory.stallSeconds", Flag("memory-stall-seconds")),
    (
        "memory.sessions",
        File("the operator writes this field, because it knows the entries"),
    ),
    ("limits.streams", Flag("session-streams")),
    ("limits.carriers", Flag("limit-carriers")),
    ("drain.acceptSeconds", Flag("drain-accept-seconds")),
    ("drain.deadlineSeconds", Flag("drain-deadline-seconds")),
    ("forwards[].name", NAME),
    ("forwards[].listen", LISTENER),
    ("forwards[].priority", LISTENER),
    ("forwards[].targets[].host", LISTENER),
    ("forwards[].targets[].port", LISTENER),
    ("forwards[].targets[].unix", LISTENER),
    (
        "forwards[].proxyProtocol.accept",
        Flag("accept-proxy-protocol"),
    ),
    ("forwards[].proxyProtocol.send", Flag("send-proxy-protocol")),
    ("forwards[].limits.streams", Flag("limit-streams")),
    ("forwards[].limits.opensPerSecond", Flag("limit-opens")),
    ("forwards[].limits.bitsPerSecond", Flag("limit-rate")),
    ("reverseForwards[].name", NAME),
    ("reverseForwards[].listen", REVERSE),
    ("reverseForwards[].priority", REVERSE),
    ("reverseForwards[].targets[].host", REVERSE),
    ("reverseForwards[].targets[].port", REVERSE),
    ("reverseForwards[].targets[].unix", REVERSE),
    ("reverseForwards[].limits.streams", Flag("limit-streams")),
    (
        "reverseForwards[].limits.opensPerSecond",
        Flag("limit-opens"),
    ),
    ("reverseForwards[].limits.bitsPerSecond", Flag("limit-rate")),
    ("proxies[].name", NAME),
    ("proxies[].protocol", PROXY),
    ("proxies[].listen", PROXY),
    ("proxies[].priority", PROXY),
    ("proxies[].fallbackTargets[].host", PROXY),
    ("proxies[].fallbackTargets[].port", PROXY),
    ("proxies[].fallbackTargets[].unix", PROXY),
    ("proxies[].user", Flag("proxy-auth")),
    ("proxies[].passwordFile", Flag("proxy-password-file")),
    (
        "proxies[].usersFile",
        File("the command line supports only one user"),
    ),
    (
        "proxies[].acceptProxyProtocol",
        Flag("accept-proxy-protocol"),
    ),
    ("proxies[].sendProxyProtocol", Flag("send-proxy-protocol")),
    ("proxies[].limits.streams", Flag("limit-streams")),
    ("proxies[].limits.opensPerSecond", Flag("limit-opens")),
    ("proxies[].limits.bitsPerSecond", Flag("limit-rate")),
];

/// The names that the error of an unknown field lists.
fn fields_of(document: &str) -> Vec<String> {
    let error = serde_json::from_str::<Config>(document)
        .unwrap_err()
        .to_string();
    let (_, expected) = error
        .split_once("unknown field `?`, expected ")
        .unwrap_or_else(|| panic!("{document}: {error}"));
    let names = expected.split('`').skip(1).step_by(2);
    names.map(str::to_owned).collect()
}

#[test]
fn each_field_of_the_file_has_a_flag_or_a_reason() {
    let is_mapping = |path: &str| {
        let within = [format!("{path}."), format!("{path}[].")];
        let mut prefixes = MAPPINGS.iter().map(|(prefix, _)| *prefix);
        prefixes.any(|prefix| within.iter().any(|within| within == prefix))
    };
    let mut fields = BTreeSet::new();
    for (prefix, document) in MAPPINGS {
        let names = fields_of(document);
        assert!(!names.is_empty(), "{prefix}: {names:?}");
        let paths = names.iter().map(|name| format!("{prefix}{name}"));
        fields.extend(paths.filter(|path| !is_mapping(path)));
    }
    // The type of forwards has this field, and the check refuses it for reverse forwards.
    assert!(fields.remove("reverseForwards[].proxyProtocol"));
    let listed: BTreeSet<_> = FIELDS.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(listed.len(), FIELDS.len(), "a path is listed twice");
    assert_eq!(listed, fields);

    let command = Cli::command();
    let gateways =
        ["entry", "exit", "rendezvous"].map(|name| command.find_subcommand(name).unwrap());
    let flags = gateways.iter().flat_map(|gateway| gateway.get_arguments());
    let flags: BTreeSet<_> = flags.filter_map(clap::Arg::get_long).collect();
    for (path, on) in FIELDS {
        match on {
            Flag(flag) => assert!(flags.contains(flag), "{path}: there is no --{flag}"),
            Positional => {}
            File(reason) => assert!(!reason.is_empty(), "{path}"),
        }
    }
}

#[test]
fn the_page_lists_the_fields_without_a_flag() {
    let page = include_str!("../../../docs/gateway.md");
    let (_, rest) = page.split_once("These fields have no flag:\n").unwrap();
    let rows: BTreeMap<_, _> = rest
        .lines()
        .skip_while(|line| line.is_empty())
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .filter_map(|line| line.trim_matches(['|', ' ']).split_once(" | "))
        .collect();
    let mut expected = BTreeMap::new();
    for (path, on) in FIELDS {
        if let File(reason) = on {
            let path = match path.split_once('.') {
                Some(("ssh", _)) => "ssh",
                _ if path.starts_with("network.peers[]") => "network.peers",
                _ => path,
            };
            expected.insert(format!("`{path}`"), *reason);
        }
    }
    let rows = rows
        .into_iter()
        .map(|(path, reason)| (path.to_owned(), reason));
    assert_eq!(rows.collect::<BTreeMap<_, _>>(), expected);
}
