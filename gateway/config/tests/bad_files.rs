//! Invalid files, each with its complete error message.

use muxtunnel_gateway_config::Config;

/// A valid file. Each case replaces one line of this file.
const ENTRY: &str = "\
role: Entry
security: {mode: None}
connect: [{name: far, address: 'exit.example.com:64000'}]
forwards:
- name: web
  listen: 127.0.0.1:8080
  targets: [{host: web.internal, port: 80}]
- name: db
  # The second one.
  listen: 127.0.0.1:5432
  targets:
  - host: db.internal
    port: 5432
limits: {streams: 100}
";

const EXIT: &str = "\
role: Exit
security:
  mode: PublicKeys
  privateKeyFiles: [/etc/muxgate/exit.key]
  peers: ['mte1q8t44xqps2cs4d74f0ld8jtyquaqactj70d2vge94upp568hqag35gy0qhe']
listen: 0.0.0.0:64000
allow:
- {host: db.internal, port: 5432}
- {cidr: 10.0.0.0/8}
drain: {}
";

const CASES: &[(&str, &str, &str, &str)] = &[
    // Invalid YAML.
    (
        ENTRY,
        "role: Entry",
        "role: [Entry",
        "1:7: role: invalid type: sequence, expected a YAML tag starting with '!'",
    ),
    (
        ENTRY,
        "    port: 5432",
        "   \tport: 5432",
        "13:4: forwards[1].targets[0].host: found a tab character that violates indentation, while scanning a plain scalar at line 12 column 11",
    ),
    (
        ENTRY,
        "connect: [{name: far, address: 'exit.example.com:64000'}]",
        "connect: [{name: far, address: 'exit.example.com:64000}]",
        "15:1: connect: found unexpected end of stream, while scanning a quoted scalar at line 3 column 32",
    ),
    (
        ENTRY,
        "limits: {streams: 100}",
        "limits: {streams: 100}\n limits: {}",
        "15:2: did not find expected key, while parsing a block mapping",
    ),
    (
        ENTRY,
        "limits: {streams: 100}",
        "---\nlimits: {streams: 100}",
        "1:1: deserializing from YAML containing more than one document is not supported",
    ),
    // Values of the wrong type.
    (
        ENTRY,
        "{streams: 100}",
        "{streams: many}",
        "14:19: limits.streams: invalid type: string \"many\", expected u32",
    ),
    (
        ENTRY,
        "{streams: 100}",
        "{streams: -1}",
        "14:19: limits.streams: invalid type: integer `-1`, expected u32",
    ),
    (
        ENTRY,
        "{streams: 100}",
        "100",
        "14:9: limits: invalid type: integer `100`, expected struct GatewayLimits",
    ),
    (
        ENTRY,
        "    port: 5432",
        "    port: 99999",
        "13:11: forwards[1].targets[0].port: invalid value: integer `99999`, expected u16",
    ),
    (
        ENTRY,
        "  listen: 127.0.0.1:5432",
        "  listen: [127.0.0.1, 5432]",
        "10:11: forwards[1].listen: invalid type: sequence, expected a string",
    ),
    (
        ENTRY,
        "role: Entry",
        "role: Entrance",
        "1:7: role: unknown variant `Entrance`, expected one of `Rendezvous`, `Exit`, `Entry`",
    ),
    (
        EXIT,
        "- {cidr: 10.0.0.0/8}",
        "- {cidr: 10.0.0.0/99}",
        "9:10: allow[1].cidr: \"10.0.0.0/99\" is not a network, such as 10.96.0.0/16, 192.0.2.7 or 2001:db8::/32: the prefix length is too large",
    ),
    (
        EXIT,
        "listen: 0.0.0.0:64000",
        "listen: 0.0.0.0:64000\nmemory: {receive: 1Pi}",
        "7:19: memory.receive: \"1Pi\" is not a size such as 64Mi, 1Gi or 1048576",
    ),
    (
        EXIT,
        "  peers: ['",
        "  peers: ['x",
        "5:3: security: `peers[0]`: not the public key of a gateway: expected 63 lower-case characters that begin with mte1 (an entry), mtx1 (an exit) or mtr1 (a rendezvous), as `muxgate keygen` prints them",
    ),
    (
        ENTRY,
        "limits:",
        "proxy: ftp://alice:secret@proxy:3128\nlimits:",
        "14:8: proxy: not a proxy: expected http://[USER:PASSWORD@]HOST:PORT, socks5h://[USER:PASSWORD@]HOST:PORT or none",
    ),
    // Unknown, missing and duplicate fields.
    (
        ENTRY,
        "  listen: 127.0.0.1:5432",
        "  lisen: 127.0.0.1:5432",
        "10:3: forwards[1].lisen: unknown field `lisen`, expected one of `name`, `listen`, `targets`, `proxyProtocol`, `priority`, `limits`",
    ),
    (
        ENTRY,
        "limits:",
        "limit:",
        "14:1: limit: unknown field `limit`, expected one of `role`, `protocol`, `packetBytes`, `transport`, `security`, `webSocket`, `congestionControl`, `livenessSeconds`, `connect`, `proxy`, `listen`, `trustedProxies`, `rendezvous`, `members`, `ssh`, `network`, `admin`, `adminHosts`, `forwards`, `reverseForwards`, `proxies`, `allow`, `deny`, `protectedCIDRs`, `nat64Prefixes`, `allowListen`, `workers`, `pool`, `resume`, `splice`, `timeouts`, `memory`, `limits`, `drain`",
    ),
    (
        ENTRY,
        "- name: db\n",
        "-\n",
        "10:3: forwards[1]: missing field `name`",
    ),
    (
        ENTRY,
        "security: {mode: None}\n",
        "",
        "1:1: missing field `security`",
    ),
    (
        ENTRY,
        "{mode: None}",
        "{mode: Certificates, ca: /ca}",
        "2:11: security: missing field `certificate` of mode Certificates",
    ),
    (
        ENTRY,
        "{mode: None}",
        "{mode: None, ca: /ca}",
        "2:24: security: `ca` is not a field of mode None",
    ),
    (
        ENTRY,
        "{mode: None}",
        "{mode: Plain}",
        "2:18: security.mode: unknown variant `Plain`, expected one of `None`, `PublicKeys`, `Certificates`, `ServerTls`, `SSH`",
    ),
    (
        ENTRY,
        "connect: [",
        "role: Exit\nconnect: [",
        "3:1: duplicate field `role`",
    ),
    (
        ENTRY,
        "    port: 5432\n",
        "",
        "12:5: forwards[1].targets[0]: set either host and port, or unix (the path of a socket)",
    ),
    // Errors of the checks after parsing.
    (
        ENTRY,
        "127.0.0.1:5432",
        "db.internal:5432",
        "10:11: forwards[1].listen: \"db.internal:5432\" is not ADDRESS:PORT, such as 0.0.0.0:8080 or [::]:8080",
    ),
    (
        ENTRY,
        "127.0.0.1:5432",
        "127.0.0.1:8080",
        "10:11: forwards[1].listen: 127.0.0.1:8080 is used by more than one listening port",
    ),
    (
        ENTRY,
        "name: db",
        "name: web",
        "8:9: forwards[1].name: \"web\" is used by more than one listening port",
    ),
    (
        ENTRY,
        "exit.example.com:64000",
        "exit.example.com",
        "3:32: connect[0].address: \"exit.example.com\" is not HOST:PORT, such as exit.example.com:64000",
    ),
    (
        ENTRY,
        "connect: [{name: far, address: 'exit.example.com:64000'}]\n",
        "",
        "1:1: connect: an entry needs its exits: list the name and the address (HOST:PORT) of each",
    ),
    (
        ENTRY,
        "exit.example.com:64000",
        "unix:relative",
        "3:32: connect[0].address: \"relative\" is not an absolute path of at most 107 bytes without control characters, such as /run/web.sock",
    ),
    (
        ENTRY,
        "name: far,",
        "name: far, command: [ssh, far],",
        "3:53: connect[0].address: an exit has an address or a command",
    ),
    (
        ENTRY,
        "{streams: 100}",
        "{streams: 0}",
        "14:19: limits.streams: must be from 1 to 1000000",
    ),
    (
        ENTRY,
        "limits:",
        "drain: {acceptSeconds: 30}\nlimits:",
        "14:24: drain.acceptSeconds: is greater than drain.deadlineSeconds",
    ),
    (
        EXIT,
        "listen: 0.0.0.0:64000",
        "listen: stdio\nworkers: 2",
        "7:10: workers: must be 1 with listen: stdio, because standard input and output are a single carrier",
    ),
    (
        EXIT,
        "drain: {}",
        "nat64Prefixes: ['2001:db8::/33']",
        "10:16: nat64Prefixes: 2001:db8::/33 is not an IPv6 prefix of 32, 40, 48, 56, 64 or 96 bits",
    ),
    (
        EXIT,
        "drain: {}",
        "transport: WebSocket\nwebSocket: {path: /a, origins: ['null']}",
        "11:32: webSocket.origins: \"null\" is not SCHEME://HOST[:PORT], such as https://app.example.com",
    ),
    (
        ENTRY,
        "limits: {streams: 100}",
        "adminHosts: [a]",
        "14:13: adminHosts: needs the field admin",
    ),
    (
        ENTRY,
        "limits: {streams: 100}",
        "admin: 127.0.0.1:1\nadminHosts: [a, 'b:1']",
        "15:17: adminHosts[1]: is not a host name, such as gateway.example.com, without a port",
    ),
    (
        EXIT,
        "drain: {}",
        "drain: {}\ntrustedProxies: [10.0.0.0/8, 0.0.0.0/0]",
        "11:30: trustedProxies[1]: 0.0.0.0/0 contains every address: list only the networks of the load balancers",
    ),
    (
        ENTRY,
        "limits:",
        "transport: KCP\nproxy: socks5h://proxy.example.com:1080\nlimits:",
        "15:8: proxy: forwards only TCP connections, but KCP runs on UDP: remove proxy or transport",
    ),
    (
        ENTRY,
        "{mode: None}",
        "{mode: ServerTls, certificate: /a}",
        "2:42: security.certificate: is only for the exit in mode ServerTls: remove the field",
    ),
];

#[test]
fn each_bad_file_is_told_with_its_line_column_field_and_what_is_expected() {
    for (file, from, to, expected) in CASES {
        assert!(Config::from_yaml(file).is_ok());
        assert!(file.contains(from), "{from}");
        let said = match Config::from_yaml(&file.replacen(from, to, 1)) {
            Ok(_) => "it can be used".to_owned(),
            Err(error) => error.to_string(),
        };
        assert_eq!(said, *expected, "{to:?}");
    }
}
