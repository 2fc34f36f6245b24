use super::status::Limit;
use super::*;

const ENTRY: &str = "\
role: Entry
protocol: JMUX
security: {mode: None}
connect:
- name: far
  address: exit.example.com:64000
admin: 0.0.0.0:64001
forwards:
- name: web
  listen: 0.0.0.0:8080
  targets: [{host: web.shop.svc, port: 80}]
";

/// Returns the message without its position, which must exist.
fn said(error: &ConfigError) -> String {
    let text = error.to_string();
    let mut parts = text.splitn(3, ':');
    for place in [parts.next(), parts.next()] {
        assert!(
            place.is_some_and(|place| place.parse::<usize>().is_ok()),
            "{text}"
        );
    }
    parts.next().unwrap_or_default().trim_start().to_owned()
}

#[test]
fn an_entry_round_trips() {
    let config = Config::from_yaml(ENTRY).unwrap();
    assert_eq!(config.memory.receive, RECEIVE_DEFAULT);
    assert_eq!(
        Config::from_yaml(&config.to_yaml().unwrap()).unwrap(),
        config
    );
}

#[test]
fn an_entry_whose_streams_outlive_their_carrier_has_a_pool() {
    let pool = |text: &str| Config::from_yaml(text).unwrap().pool();
    let native = ENTRY.replace("protocol: JMUX\n", "");
    assert_eq!(pool(&native), Pool::GROWING);
    assert_eq!(pool(&format!("{native}resume: false\n")), Pool::ONE);
    assert_eq!(
        pool(&format!("{native}pool: {{min: 1, max: 9}}\n")).max(),
        9
    );
    assert_eq!(pool(&format!("{native}pool: {{min: 3}}\n")).max(), 3);
    assert_eq!(pool(ENTRY), Pool::ONE);
    let exit = "role: Exit\nsecurity: {mode: None}\nlisten: 0.0.0.0:64000\n";
    assert_eq!(pool(exit), Pool::ONE);
    assert_eq!(Config::from_yaml(exit).unwrap().protocol, Protocol::Native);
}

#[test]
fn a_pool_is_written_out_only_where_it_is_configured() {
    let one = Config::from_yaml(ENTRY).unwrap();
    assert!(one.resume && one.pool.is_none());
    let text = one.to_yaml().unwrap();
    assert!(!text.contains("pool") && !text.contains("resume") && !text.contains("retain"));
    let several = ENTRY.replace(
        "protocol: JMUX",
        "protocol: Native\nmemory: {retain: 2Mi}\npool: {min: 2, max: 4}",
    );
    let several = Config::from_yaml(&several).unwrap();
    assert_eq!(several.memory.retain, ByteSize(2 << 20));
    assert_eq!(
        several.pool,
        Some(Pool {
            min: 2,
            max: Some(4)
        })
    );
    let text = several.to_yaml().unwrap();
    assert_eq!(Config::from_yaml(&text).unwrap(), several);
}

#[test]
fn security_must_be_written_out() {
    let error = Config::from_yaml(&ENTRY.replace("security: {mode: None}\n", "")).unwrap_err();
    assert!(error.to_string().contains("security"), "{error}");
}

#[test]
fn a_syntax_error_names_the_line() {
    let error =
        Config::from_yaml(&ENTRY.replace("role: Entry", "role: Entry\nroll: x")).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("2:1: roll: unknown field `roll`"),
        "{error}"
    );
}

#[test]
fn bad_fields_are_named_by_path() {
    let table = [
        (
            "0.0.0.0:8080",
            "8080",
            "forwards[0].listen: \"8080\" is not ADDRESS:PORT",
        ),
        (
            "port: 80",
            "port: 0",
            "forwards[0].targets[0].port: must be from 1 to 65535",
        ),
        (
            "exit.example.com:64000",
            "exit.example.com",
            "connect[0].address: \"exit.example.com\" is not HOST:PORT",
        ),
        (
            "exit.example.com:64000",
            "exit.example.com:64000\n- {name: near, address: other.example.com}",
            "connect[1].address: \"other.example.com\" is not HOST:PORT",
        ),
        (
            "name: web",
            "name: ''",
            "forwards[0].name: must have 1 to 63 characters",
        ),
        (
            "admin: 0.0.0.0:64001",
            "memory: {receive: 1Ki}",
            "memory.receive: 1Ki is less than the minimum of 1Mi",
        ),
        (
            "admin: 0.0.0.0:64001",
            "memory: {retain: 512Ki}",
            "memory.retain: 512Ki is less than the minimum of 1Mi",
        ),
        (
            "admin: 0.0.0.0:64001",
            "memory: {stallSeconds: 2592001}",
            "memory.stallSeconds: must be from 0 to 2592000",
        ),
        (
            "admin: 0.0.0.0:64001",
            "pool: {min: 1, max: 17}",
            "pool.max: must be from 1 to 16",
        ),
        (
            "admin: 0.0.0.0:64001",
            "pool: {min: 0}",
            "pool.min: must be from 1 to 16",
        ),
        (
            "admin: 0.0.0.0:64001",
            "pool: {min: 3, max: 2}",
            "pool.min: is greater than pool.max",
        ),
        (
            "admin: 0.0.0.0:64001",
            "pool: {min: 2, max: 4}",
            "pool: protocol JMUX has one carrier per session",
        ),
        (
            "protocol: JMUX",
            "protocol: Native\nresume: false\npool: {min: 1, max: 4}",
            "pool: several carriers per session need resume: true",
        ),
        (
            "admin: 0.0.0.0:64001",
            "listen: 0.0.0.0:1",
            "listen: an entry does not listen for carriers: remove the field",
        ),
        (
            "admin: 0.0.0.0:64001",
            "limits: {streams: 0}",
            "limits.streams: must be from 1 to 1000000",
        ),
        (
            "admin: 0.0.0.0:64001",
            "packetBytes: 1023",
            "packetBytes: 1023 is less than the minimum of 1024",
        ),
        (
            "admin: 0.0.0.0:64001",
            "workers: 65",
            "workers: must be from 1 to 64",
        ),
        (
            "admin: 0.0.0.0:64001",
            "timeouts: {idleSeconds: 2592001}",
            "timeouts.idleSeconds: must be from 0 to 2592000",
        ),
        (
            "admin: 0.0.0.0:64001",
            "timeouts: {halfOpenSeconds: 2592001}",
            "timeouts.halfOpenSeconds: must be from 0 to 2592000",
        ),
        (
            "admin: 0.0.0.0:64001",
            "timeouts: {keepaliveSeconds: 7201}",
            "timeouts.keepaliveSeconds: must be from 0 to 7200",
        ),
        (
            "listen: 0.0.0.0:8080",
            "limits: {streams: 0}\n  listen: 0.0.0.0:8080",
            "forwards[0].limits.streams: must be from 1 to 1000000",
        ),
        (
            "listen: 0.0.0.0:8080",
            "limits: {opensPerSecond: 1000001}\n  listen: 0.0.0.0:8080",
            "forwards[0].limits.opensPerSecond: must be from 1 to 1000000",
        ),
        (
            "listen: 0.0.0.0:8080",
            "limits: {bitsPerSecond: 99k}\n  listen: 0.0.0.0:8080",
            "forwards[0].limits.bitsPerSecond: 99k is out of range: expected 100k to 1T",
        ),
        (
            "listen: 0.0.0.0:8080",
            "limits: {bitsPerSecond: 5MB}\n  listen: 0.0.0.0:8080",
            "forwards[0].limits.bitsPerSecond: \"5MB\" is not a rate in bits per second such as 500k, 100M or 1G",
        ),
        (
            "listen: 0.0.0.0:8080",
            "listen: 0.0.0.0:8080\n  proxyProtocol: {send: V2}",
            "forwards[0].proxyProtocol.send: protocol JMUX cannot send the client's address to the exit: remove the field",
        ),
        (
            "listen: 0.0.0.0:8080",
            "listen: unix:web.sock",
            "forwards[0].listen: \"web.sock\" is not an absolute path of at most 107 bytes",
        ),
        (
            "{host: web.shop.svc, port: 80}",
            "{unix: web.sock}",
            "forwards[0].targets[0].unix: \"web.sock\" is not an absolute path",
        ),
    ];
    for (from, to, message) in table {
        let error = Config::from_yaml(&ENTRY.replace(from, to)).unwrap_err();
        assert!(said(&error).starts_with(message), "{error}");
    }
}

/// The begin of a file of an entry, before its lists.
fn before_lists() -> String {
    let native = ENTRY.replace("protocol: JMUX\n", "");
    native.split_once("forwards:").unwrap().0.to_owned()
}

#[test]
fn every_kind_of_listening_port_round_trips() {
    for (list, port) in [
        (
            "forwards",
            "listen: 'unix:/run/a.sock', targets: [{unix: /run/b.sock}]",
        ),
        (
            "forwards",
            "listen: 0.0.0.0:1, targets: [{host: a, port: 1}], proxyProtocol: {accept: Required, send: V2}",
        ),
        (
            "reverseForwards",
            "listen: 0.0.0.0:1, targets: [{host: a, port: 1}], priority: Bulk",
        ),
        (
            "proxies",
            "listen: 0.0.0.0:1, protocol: SOCKS5, user: alice, passwordFile: /a",
        ),
        (
            "proxies",
            "listen: 0.0.0.0:1, protocol: HTTP, usersFile: /a",
        ),
        (
            "proxies",
            "listen: 0.0.0.0:1, protocol: Auto, fallbackTargets: [{host: a, port: 1}]",
        ),
        (
            "proxies",
            "listen: 0.0.0.0:1, protocol: Transparent, acceptProxyProtocol: Required",
        ),
        (
            "proxies",
            "listen: 0.0.0.0:1, protocol: SOCKS5, acceptProxyProtocol: Required, sendProxyProtocol: V2",
        ),
    ] {
        let text = format!("{}{list}: [{{name: web, {port}}}]\n", before_lists());
        let config = Config::from_yaml(&text).unwrap();
        assert_eq!(config.listeners().len(), 1);
        let again = Config::from_yaml(&config.to_yaml().unwrap()).unwrap();
        assert_eq!(again, config, "{port}");
    }
}

#[test]
fn a_proxy_whose_fields_conflict_is_refused_by_its_field() {
    for (proxy, message) in [
        (
            "listen: 0.0.0.0:1, protocol: SOCKS5, fallbackTargets: [{host: a, port: 1}]",
            "proxies[0].fallbackTargets: is not allowed with protocol SOCKS5",
        ),
        (
            "listen: 0.0.0.0:1, protocol: Auto, fallbackTargets: [{host: a, port: 0}]",
            "proxies[0].fallbackTargets[0].port: must be from 1 to 65535",
        ),
        (
            "listen: 'unix:/run/a', protocol: Transparent",
            "proxies[0].listen: must be ADDRESS:PORT with protocol Transparent",
        ),
        (
            "listen: 0.0.0.0:1, protocol: Transparent, usersFile: /a",
            "proxies[0].usersFile: clients of protocol Transparent cannot authenticate",
        ),
        (
            "listen: 0.0.0.0:1, protocol: Auto, fallbackTargets: [{host: a, port: 1}], usersFile: /a",
            "proxies[0].usersFile: clients that are forwarded to the fallback target cannot authenticate",
        ),
        (
            "listen: 0.0.0.0:1, protocol: Auto, user: 'a:b', passwordFile: /a",
            "proxies[0].user: must have 1 to 255 bytes without a colon",
        ),
        (
            "listen: 0.0.0.0:1, protocol: Auto, user: a",
            "proxies[0].user: a proxy has either a usersFile, or a user and a passwordFile",
        ),
        (
            "listen: 0.0.0.0:1, protocol: Auto, usersFile: /a, user: a",
            "proxies[0].usersFile: a proxy has either a usersFile, or a user and a passwordFile",
        ),
    ] {
        let text = format!("{}proxies: [{{name: any, {proxy}}}]\n", before_lists());
        let error = Config::from_yaml(&text).unwrap_err();
        assert!(said(&error).starts_with(message), "{error}");
    }
    let text =
        "proxies: [{name: any, listen: 0.0.0.0:1, protocol: SOCKS5, sendProxyProtocol: V2}]\n";
    let text = format!("{}{text}", before_lists());
    let error = Config::from_yaml(&format!("{text}protocol: JMUX\n")).unwrap_err();
    let message = "proxies[0].sendProxyProtocol: protocol JMUX cannot send the client's address";
    assert!(said(&error).starts_with(message), "{error}");
}

#[test]
fn what_is_half_a_target_is_refused_in_words() {
    for target in ["{host: a}", "{unix: /a, port: 1}"] {
        let (head, _) = ENTRY.split_once("- name: web").unwrap();
        let text = format!("{head}- {{name: web, listen: 0.0.0.0:1, targets: [{target}]}}\n");
        let error = Config::from_yaml(&text).unwrap_err().to_string();
        let expected = "set either host and port, or unix";
        assert!(
            error.contains(expected) && error.starts_with("9:"),
            "{error}"
        );
    }
}

#[test]
fn two_forwards_on_one_port_are_refused_with_the_port() {
    let twice = format!(
        "{ENTRY}- name: other\n  listen: 0.0.0.0:8080\n  targets: [{{host: a, port: 1}}]\n"
    );
    let error = Config::from_yaml(&twice).unwrap_err();
    assert_eq!(
        said(&error),
        "forwards[1].listen: 0.0.0.0:8080 is used by more than one listening port"
    );
}

#[test]
fn what_is_left_out_is_decided_here() {
    let config = Config::from_yaml(ENTRY).unwrap();
    assert_eq!(config.congestion_control, CongestionControl::Auto);
    assert_eq!(config.workers, None);
    let timeouts = config.timeouts;
    let seconds = (timeouts.idle_seconds(), timeouts.half_open_seconds());
    assert_eq!((seconds, timeouts.keepalive_seconds()), ((0, 3600), 60));
    assert_eq!(config.forwards[0].limits, Limits::default());
    assert_eq!(config.forwards[0].priority, Priority::Auto);
    let written = config.to_yaml().unwrap();
    assert!(!written.contains("timeouts") && !written.contains("priority"));
}

#[test]
fn everything_that_can_be_written_round_trips() {
    let text = ENTRY
        .replace("protocol: JMUX", "protocol: Native\ncongestionControl: BBR")
        .replace(
            "admin:",
            "workers: 2\ntimeouts: {idleSeconds: 60, halfOpenSeconds: 0, keepaliveSeconds: 30}\nadmin:",
        )
        + "  priority: Interactive\n  limits: {streams: 10, opensPerSecond: 5, bitsPerSecond: 100M}\n";
    let config = Config::from_yaml(&text).unwrap();
    assert_eq!(config.forwards[0].priority, Priority::Interactive);
    assert_eq!(
        config.forwards[0]
            .limits
            .bits_per_second
            .map(BitRate::bytes),
        Some(12_500_000)
    );
    let written = config.to_yaml().unwrap();
    assert_eq!(Config::from_yaml(&written).unwrap(), config);
}

#[test]
fn the_documented_configurations_can_be_used() {
    let page = include_str!("../../../docs/gateway.md");
    let blocks: Vec<_> = page
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("```"))
        .map(|(block, _)| {
            // A block without a role is a part of an exit's configuration.
            let text = match block.starts_with("role:") {
                true => block.to_owned(),
                false => {
                    let begun = "role: Exit\nlisten: 0.0.0.0:64000\n";
                    let secured = block.starts_with("security:");
                    let security = if secured {
                        ""
                    } else {
                        "security: {mode: None}\n"
                    };
                    format!("{begun}{security}{block}")
                }
            };
            Config::from_yaml(&text).unwrap().role
        })
        .collect();
    assert_eq!(
        blocks,
        [
            Role::Entry,
            Role::Exit,
            Role::Exit,
            Role::Entry,
            Role::Exit,
            Role::Entry,
            Role::Exit,
            Role::Exit,
            Role::Exit,
            Role::Exit
        ]
    );
}

#[test]
fn the_streams_of_jmux_alone_must_fit_into_the_memory() {
    let small = ENTRY.replace("admin: 0.0.0.0:64001", "memory: {receive: 16Mi}");
    let error = Config::from_yaml(&small).unwrap_err();
    assert_eq!(
        said(&error),
        "limits.streams: 4096 streams need a memory.receive of at least 64Mi with protocol JMUX, not 16Mi"
    );
    Config::from_yaml(&small.replace("protocol: JMUX", "protocol: Native")).unwrap();
}

#[test]
fn only_forwards_rules_and_timeouts_reload() {
    let running = Config::from_yaml(ENTRY).unwrap();
    let patient =
        Config::from_yaml(&ENTRY.replace("admin:", "timeouts: {idleSeconds: 5}\nadmin:")).unwrap();
    let nothing: [&str; 0] = [];
    assert_eq!(running.needing_restart(&patient), nothing);
    let moved = Config::from_yaml(&ENTRY.replace(":8080", ":9090")).unwrap();
    assert_eq!(running.needing_restart(&moved), nothing);
    let elsewhere = ENTRY.replace("exit.example.com", "other.example.com") + "workers: 7\n";
    let elsewhere = Config::from_yaml(&elsewhere.replace(":8080", ":9090")).unwrap();
    assert_eq!(running.needing_restart(&elsewhere), ["connect", "workers"]);
    // A reload applies the reloadable fields of a file, even if static fields differ.
    assert_eq!(running.reloaded(&elsewhere), moved);
    assert_eq!(elsewhere.needing_restart(&running), ["connect", "workers"]);
}

#[test]
fn peers_reload_and_keys_do_not() {
    let secured = |peers: &str, key: &str| {
        let security = format!(
            "security: {{mode: Certificates, certificate: /c, key: {key}, ca: /a, peers: [{peers}]}}"
        );
        Config::from_yaml(&EXIT.replace("security: {mode: None}", &security)).unwrap()
    };
    let running = secured("a, b", "/k");
    let fewer = secured("a", "/k");
    assert!(running.needing_restart(&fewer).is_empty());
    assert_eq!(running.reloaded(&fewer), fewer);
    let moved = secured("a", "/other");
    assert_eq!(running.needing_restart(&moved), ["security"]);
    assert_eq!(running.reloaded(&moved), fewer);
}

#[test]
fn rules_parse_and_print() {
    for text in [
        "web.example.com",
        "web.example.com:443",
        "10.0.0.0/8",
        "10.0.0.0/8:5432",
        "192.0.2.7:80",
        "2001:db8::/32",
        "2001:db8::1",
        "[2001:db8::1]:443",
        "[2001:db8::]/32:443",
        "localhost:22",
        "web.example.com:8000-8100",
        "*",
        "*:25",
        "*.example.com",
        "*.example.com:443,peer=spiffe://a.b/c",
        "[2001:db8::]/32:1-1024,peer=x",
        "10.0.0.0/8,peer=a, b",
        "unix:/run/web.sock",
    ] {
        assert_eq!(text.parse::<Rule>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "a b",
        "10.0.0.0/33",
        "x:0",
        "x:99999",
        "[::1",
        "1.2.3",
        "0x7f.1",
        "0x7f000001",
        "10.0.0.0/x",
        "*.",
        "**",
        "*.*.com",
        "a.*",
        "x:9-8",
        "x:0-8",
        "x:1-",
        "x:1-2-3",
        "x,peer=",
        "x,pear=a",
        "unix:web.sock",
        "unix:/a\nb",
    ] {
        assert!(text.parse::<Rule>().is_err(), "{text:?}");
    }
}

#[test]
fn sizes_parse_and_print() {
    for (text, bytes) in [
        ("64Mi", 64 << 20),
        ("1Gi", 1 << 30),
        ("4Ki", 4096),
        ("17", 17),
    ] {
        assert_eq!(text.parse::<ByteSize>().unwrap().0, bytes);
        assert_eq!(ByteSize(bytes).to_string(), text);
    }
    for text in ["", "Mi", "1M", "-1", "99999999999Gi"] {
        assert!(text.parse::<ByteSize>().is_err(), "{text:?}");
    }
}

#[test]
fn rates_parse_and_print() {
    for (text, bits) in [
        ("500k", 500_000),
        ("100M", 100_000_000),
        ("1G", 1_000_000_000),
        ("1500k", 1_500_000),
        ("1T", 1_000_000_000_000),
        ("100001", 100_001),
    ] {
        assert_eq!(text.parse::<BitRate>().unwrap().0, bits);
        assert_eq!(BitRate(bits).to_string(), text);
    }
    for text in [
        "",
        "k",
        "100m",
        "100Mbit",
        "-1M",
        "+1M",
        "1.5G",
        "9999999999T",
    ] {
        assert!(text.parse::<BitRate>().is_err(), "{text:?}");
    }
    let number: BitRate = serde_yaml::from_str("100000000").unwrap();
    assert_eq!(number.to_string(), "100M");
    assert!(serde_yaml::from_str::<BitRate>("-1").is_err());
}

#[test]
fn priorities_parse() {
    for (text, priority) in [
        ("Auto", Priority::Auto),
        ("interactive", Priority::Interactive),
        ("bulk", Priority::Bulk),
    ] {
        assert_eq!(text.parse(), Ok(priority));
    }
    let error = "urgent".parse::<Priority>().unwrap_err();
    assert!(error.contains("Auto, Interactive and Bulk"), "{error}");
}

#[test]
fn the_hash_is_that_of_the_text() {
    // SHA-256 of the empty text.
    assert_eq!(config_hash(""), "e3b0c44298fc1c14");
}

#[test]
fn a_limit_of_another_version_is_read_as_such() {
    let read = |text: &str| serde_json::from_str(text).unwrap();
    let limits: Vec<Limit> = read("[\"SendBuffer\", \"Moonlight\"]");
    assert_eq!(limits, [Limit::SendBuffer, Limit::Other]);
    let seconds: std::collections::BTreeMap<Limit, f64> =
        serde_json::from_str("{\"Moonlight\": 3.5, \"CPU\": 1.0}").unwrap();
    assert_eq!((seconds[&Limit::Other], seconds[&Limit::Cpu]), (3.5, 1.0));
}

#[test]
fn a_limit_has_one_name_everywhere() {
    for limit in Limit::ALL {
        assert_eq!(serde_json::json!(limit), limit.as_str());
    }
}

#[test]
fn a_secured_carrier_names_its_files_and_who_the_other_end_may_be() {
    let with = |security: &str| Config::from_yaml(&EXIT.replace("{mode: None}", security));
    let tls = "{mode: Certificates, certificate: a, key: b, ca: c, peers: ['exit.example.com']}";
    let config = with(tls).unwrap();
    assert_eq!(config.security.files().len(), 3);
    let again = Config::from_yaml(&config.to_yaml().unwrap()).unwrap();
    assert_eq!(again, config);
    let key = key_text(Role::Entry, &[7; KEY_BYTES]);
    let keys =
        format!("{{mode: PublicKeys, privateKeyFiles: [a], peersFile: b, peers: ['{key}']}}");
    let config = with(&keys).unwrap();
    assert_eq!(config.security.files().len(), 2);
    assert_eq!(
        Config::from_yaml(&config.to_yaml().unwrap()).unwrap(),
        config
    );
    for (security, problem) in [
        ("{mode: None, key: b}", "`key` is not a field of mode None"),
        ("{mode: Tls}", "unknown variant `Tls`"),
        (
            "{mode: Certificates, key: b, ca: c, peers: [d]}",
            "certificate",
        ),
        (
            &tls.replace("exit.example.com", ""),
            "security.peers[0].certificateNames[0]: \"\" is not a name in a certificate",
        ),
        (
            &tls.replace("key: b", "key: b, peersFile: d"),
            "`peersFile` is not a field of mode Certificates",
        ),
        (
            &keys.replace(&key, "abc="),
            "`peers[0]`: not the public key",
        ),
    ] {
        let error = with(security).unwrap_err().to_string();
        assert!(error.contains(problem), "{security}: {error}");
    }
}

#[test]
fn a_web_socket_has_a_path() {
    let with = |web_socket: &str| {
        Config::from_yaml(&format!(
            "{ENTRY}transport: WebSocket\nwebSocket: {web_socket}\n"
        ))
    };
    for path in ["carrier", "''", "/a b", "/a?b"] {
        let error = with(&format!("{{path: {path}}}")).unwrap_err();
        assert!(said(&error).starts_with("webSocket.path:"), "{error}");
    }
    let web_socket = with("{path: /a}").unwrap().web_socket.unwrap();
    assert_eq!(web_socket.path.as_str(), "/a");
}

#[test]
fn origins_are_an_exits_and_written_as_browsers_send_them() {
    let with = |base: &str, origins: &str| {
        Config::from_yaml(&format!(
            "{base}transport: WebSocket\nwebSocket: {{path: /a, origins: [{origins}]}}\n"
        ))
    };
    let error = with(ENTRY, "'https://a.example.com'").unwrap_err();
    assert!(
        error
            .to_string()
            .contains("only an exit accepts WebSocket carriers: remove the field"),
        "{error}"
    );
    for origin in [
        "'null'",
        "a.example.com",
        "'https://a/b'",
        "'ftp://a'",
        "'https://'",
    ] {
        let error = with(EXIT, origin).unwrap_err();
        assert!(
            error.to_string().contains("is not SCHEME://HOST[:PORT]"),
            "{error}"
        );
    }
    let many = "'http://a',".repeat(ORIGINS_MAX + 1);
    assert!(with(EXIT, &many).is_err());
    let config = with(EXIT, "'https://a.example.com:8443', 'http://[::1]'").unwrap();
    assert_eq!(config.web_socket.unwrap().origins.len(), 2);
}

const EXIT: &str = "role: Exit\nsecurity: {mode: None}\nlisten: 0.0.0.0:64000\n";

#[test]
fn a_prefix_of_nat64_has_a_length_of_rfc_6052() {
    let with = |prefixes: &str| Config::from_yaml(&format!("{EXIT}nat64Prefixes: [{prefixes}]\n"));
    for wrong in ["'10.0.0.0/8'", "'2001:db8::/33'", "'2001:db8::1'"] {
        let error = with(wrong).unwrap_err().to_string();
        assert!(error.contains("is not an IPv6 prefix of 32, 40"), "{error}");
    }
    assert!(with(&"'2001:db8::/96',".repeat(NAT64_PREFIXES_MAX + 1)).is_err());
    assert!(with("'2001:db8::/32', '2001:db8:1::/96'").is_ok());
}

#[test]
fn rules_round_trip_and_reload() {
    let text = format!(
        "{EXIT}allow: [{{host: '*.example.com', port: 443}}, {{cidr: 10.0.0.0/8}}, {{unix: /run/a}}]\ndeny: [{{cidr: 10.1.0.0/16, port: 1, endPort: 9}}, {{host: '*'}}]\nprotectedCIDRs: [10.96.0.1, 'fd00::/64']\n"
    );
    let config = Config::from_yaml(&text).unwrap();
    let shown = |rules: &[Rule]| rules.iter().map(ToString::to_string).collect::<Vec<_>>();
    let allow = ["*.example.com:443", "10.0.0.0/8", "unix:/run/a"];
    assert_eq!(shown(&config.allow), allow);
    assert_eq!(shown(&config.deny), ["10.1.0.0/16:1-9", "*"]);
    let written = config.to_yaml().unwrap();
    assert_eq!(Config::from_yaml(&written).unwrap(), config);
    let plain = Config::from_yaml(EXIT).unwrap();
    assert!(
        plain.needing_restart(&config).is_empty() && !plain.to_yaml().unwrap().contains("allow")
    );
    // An entry also dials, for reverse forwards. An entry needs no allow rules, because it dials
    // only declared targets.
    let text = format!("{ENTRY}protectedCIDRs: [10.96.0.1]\n");
    assert_eq!(Config::from_yaml(&text).unwrap().protected_cidrs.len(), 1);
}

#[test]
fn a_rule_that_cannot_be_used_is_refused_by_its_path() {
    let with = |rule: &str| format!("{EXIT}allow: [{{{rule}}}]\n");
    for (rule, problem) in [
        ("port: 1", "a rule needs exactly one of host and cidr"),
        (
            "host: a, cidr: 10.0.0.0/8",
            "a rule needs exactly one of host and cidr",
        ),
        (
            "host: 10.0.0.0/8",
            "host is a name: write a network in cidr",
        ),
        ("host: 'a b'", "the host is not a DNS name"),
        ("host: a, port: 0", "a port must be from 1 to 65535"),
        (
            "host: a, endPort: 9",
            "endPort needs a port that is not greater than endPort",
        ),
        (
            "host: a, port: 10, endPort: 9",
            "endPort needs a port that is not greater than endPort",
        ),
        ("unix: a", "unix: \"a\" is not an absolute path"),
        (
            "unix: /a, port: 1",
            "unix has neither host, cidr nor ports: remove them",
        ),
    ] {
        let error = Config::from_yaml(&with(rule)).unwrap_err();
        let expected = format!("allow[0]: {problem}");
        assert!(said(&error).starts_with(&expected), "{rule}: {error}");
    }
    let error = Config::from_yaml(&with("cidr: web")).unwrap_err();
    let expected = "allow[0].cidr: \"web\" is not a network";
    assert!(said(&error).starts_with(expected), "{error}");
}

#[test]
fn lists_of_rules_that_cannot_be_used_are_refused_by_their_path() {
    let rules = vec!["{cidr: 10.0.0.0/8}"; RULES_MAX + 1].join(", ");
    let networks = vec!["10.0.0.0/8"; 257].join(", ");
    for (text, message) in [
        (
            format!("{ENTRY}allow: [{{host: a}}]\n"),
            "allow: only an exit dials targets",
        ),
        (
            format!("{EXIT}deny: [{rules}]\n"),
            "deny: has 769 entries, at most 768",
        ),
        (
            format!("{EXIT}protectedCIDRs: [{networks}]\n"),
            "protectedCIDRs: has 257 entries, at most 64",
        ),
        (
            format!("{EXIT}protectedCIDRs: ['10.0.0.0/99']\n"),
            "protectedCIDRs[0]: \"10.0.0.0/99\" is not a network, such as",
        ),
    ] {
        let error = Config::from_yaml(&text).unwrap_err();
        assert!(said(&error).starts_with(message), "{error}");
    }
}

#[test]
fn a_reverse_forward_has_no_proxy_headers() {
    let entry = ENTRY.replace("protocol: JMUX\n", "");
    let entry = entry.replace("forwards:", "reverseForwards:");
    for headers in ["accept: Required", "send: V2"] {
        let error = Config::from_yaml(&format!("{entry}  proxyProtocol: {{{headers}}}\n"));
        let message = "reverseForwards[0].proxyProtocol: is not for reverse forwards";
        let error = error.unwrap_err();
        assert!(said(&error).starts_with(message), "{error}");
    }
}

#[test]
fn reverse_forwards_and_what_exits_allow_of_them_round_trip() {
    let entry = ENTRY.replace("protocol: JMUX\n", "");
    let entry = Config::from_yaml(&entry.replace("forwards:", "reverseForwards:")).unwrap();
    assert_eq!(entry.listeners()[0].direction, Direction::ExitToEntry);
    assert_eq!(Config::from_yaml(&entry.to_yaml().unwrap()).unwrap(), entry);
    let text = format!(
        "{EXIT}allowListen: [8080, '0.0.0.0:9000-9100', '[::]:80', '0.0.0.0:70,peer=spiffe://a/b']\n"
    );
    let exit = Config::from_yaml(&text.replace("8080", "'8080'")).unwrap();
    let written: Vec<_> = exit.allow_listen.iter().map(ToString::to_string).collect();
    assert_eq!(
        written,
        [
            "127.0.0.1:8080",
            "0.0.0.0:9000-9100",
            "[::]:80",
            "0.0.0.0:70,peer=spiffe://a/b"
        ]
    );
    assert_eq!(Config::from_yaml(&exit.to_yaml().unwrap()).unwrap(), exit);
    let permitted_to = |peer, address: &str| {
        let (address, mut rules) = (address.parse().unwrap(), exit.allow_listen.iter());
        rules.any(|rule| rule.permits(address, peer))
    };
    let permitted = |address| permitted_to(None, address);
    for (peer, expected) in [
        (Some("spiffe://a/b"), true),
        (Some("b"), false),
        (None, false),
    ] {
        assert_eq!(permitted_to(peer, "0.0.0.0:70"), expected, "{peer:?}");
        assert!(permitted_to(peer, "127.0.0.1:8080"), "{peer:?}");
    }
    for (address, expected) in [
        ("127.0.0.1:8080", true),
        ("127.0.0.1:8081", false),
        ("0.0.0.0:8080", false),
        ("0.0.0.0:9100", true),
        ("127.0.0.1:9100", false),
        ("[::]:80", true),
        // A listener on `0.0.0.0`, which an entry of an older version requests, is permitted by a
        // rule for all addresses of both families.
        ("0.0.0.0:80", true),
        ("127.0.0.1:80", false),
    ] {
        assert_eq!(permitted(address), expected, "{address}");
    }
    for text in [
        "",
        "0",
        "80-79",
        "a:80",
        ":80",
        "::1:80",
        "[::1:80",
        "1.2.3:80",
        "80-",
        "80,peer=",
        "80,peers=a",
    ] {
        assert!(text.parse::<ListenRule>().is_err(), "{text:?}");
    }
}

#[test]
fn one_address_may_be_listened_on_at_both_ends_and_at_either_once() {
    let native = ENTRY.replace("protocol: JMUX\n", "");
    let other = |name: &str| {
        format!("- name: {name}\n  listen: 0.0.0.0:8080\n  targets: [{{host: a, port: 1}}]\n")
    };
    let both = format!("{native}reverseForwards:\n{}", other("b"));
    Config::from_yaml(&both).unwrap();
    let error = Config::from_yaml(&format!("{both}{}", other("c"))).unwrap_err();
    let message = "reverseForwards[1].listen: ";
    assert!(said(&error).starts_with(message), "{error}");
    let error = Config::from_yaml(&format!("{native}reverseForwards:\n{}", other("web")));
    let message = "reverseForwards[0].name: \"web\" is used by more than one listening port";
    assert_eq!(said(&error.unwrap_err()), message);
}

#[test]
fn what_cannot_listen_for_its_peer_says_so() {
    let many = vec!["'8080'"; LISTEN_RULES_MAX + 1].join(", ");
    for (text, message) in [
        (
            ENTRY.replace("forwards:", "reverseForwards:"),
            "reverseForwards[0].listen: protocol JMUX cannot request that an exit listens: use Native, HTTP2, QUIC or SSH",
        ),
        (
            format!("{EXIT}protocol: JMUX\nallowListen: ['8080']\n"),
            "allowListen: protocol JMUX cannot request",
        ),
        (
            ENTRY.replace("forwards:", "allowListen: ['8080']\nforwards:"),
            "allowListen: only an exit",
        ),
        (
            format!("{EXIT}allowListen: [{many}]\n"),
            "allowListen: has 4097 entries, at most 4096",
        ),
    ] {
        let error = Config::from_yaml(&text).unwrap_err();
        assert!(said(&error).starts_with(message), "{error}");
    }
}

/// The text of a key.
fn key(role: Role, byte: u8) -> String {
    key_text(role, &[byte; 32])
}

const KEYS: &str = "security: {mode: PublicKeys, privateKeyFiles: [/k]}\n";

/// An entry, an exit and their rendezvous.
fn meeting() -> [String; 3] {
    let at = format!(
        "address: 'meet:443', publicKeys: [{}]",
        key(Role::Rendezvous, 7)
    );
    let (near, far) = (key(Role::Entry, 7), key(Role::Exit, 7));
    let web = "forwards: [{name: a, listen: '127.0.0.1:1', targets: [{host: web, port: 80}]}]\n";
    [
        format!(
            "role: Entry\n{KEYS}connect: [{{name: far, rendezvous: {{{at}}}, publicKeys: [{far}]}}]\n{web}"
        ),
        format!("role: Exit\n{KEYS}rendezvous: [{{name: meet, {at}}}]\n"),
        format!(
            "role: Rendezvous\n{KEYS}listen: 0.0.0.0:1\nmembers: [{{name: near, publicKeys: [{near}]}}, {{publicKeys: \
             [{other}]}}]\n",
            other = key(Role::Exit, 8)
        ),
    ]
}

#[test]
fn leaves_and_their_rendezvous_have_what_they_need_and_nothing_else() {
    let [entry, exit, rendezvous] = meeting();
    for text in [&exit, &rendezvous, &entry] {
        let config = Config::from_yaml(text).unwrap();
        let written = config.to_yaml().unwrap();
        assert_eq!(Config::from_yaml(&written).unwrap(), config);
    }
    let none = "security: {mode: None}\n";
    let place = |name: &str| {
        format!(
            "{{name: {name}, address: 'a:1', publicKeys: [{}]}}",
            key(Role::Rendezvous, 9)
        )
    };
    let many: Vec<_> = ["a", "b", "c", "d"].map(place).into();
    let many = many.join(", ");
    let meet = key(Role::Rendezvous, 7);
    for (text, message) in [
        (
            rendezvous.replace(KEYS, none),
            "security.mode: a rendezvous knows its members by their keys",
        ),
        (
            exit.replace(KEYS, none),
            "security.mode: a rendezvous knows its members by their keys",
        ),
        (
            entry
                .replace(KEYS, none)
                .replace(&format!(", publicKeys: [{}]}}]", key(Role::Exit, 7)), "}]"),
            "security.mode: a rendezvous knows its members by their keys",
        ),
        (
            format!(
                "{EXIT}members: [{{publicKeys: [{}]}}]\n",
                key(Role::Exit, 8)
            ),
            "members: only a rendezvous",
        ),
        (
            rendezvous.replace(&key(Role::Exit, 8), &key(Role::Exit, 7)),
            "members[1].publicKeys[0]: mtx1",
        ),
        (
            rendezvous.replace(&key(Role::Exit, 8), &meet),
            "members[1].publicKeys[0]: the key of a rendezvous (mtr1...), but a member",
        ),
        (
            rendezvous.replace(
                "privateKeyFiles",
                &format!("peers: [{}], privateKeyFiles", key(Role::Entry, 9)),
            ),
            "security.peers: is only for an exit: write the gateways into members",
        ),
        (
            format!("{rendezvous}rendezvous: [{}]\n", place("a")),
            "rendezvous: a rendezvous cannot connect",
        ),
        (
            format!("{entry}rendezvous: [{}]\n", place("a")),
            "rendezvous: only an exit registers",
        ),
        (
            rendezvous.replace("listen: 0.0.0.0:1\n", ""),
            "listen: a rendezvous needs",
        ),
        (
            format!("{rendezvous}allow: [{{host: a}}]\n"),
            "allow: only an exit",
        ),
        (
            format!("{rendezvous}connect:\n- name: far\n  address: a:1\n"),
            "connect: only an entry dials carriers",
        ),
        (
            format!("{exit}listen: 0.0.0.0:1\n"),
            "listen: an exit behind a rendezvous",
        ),
        (
            exit.replace("name: meet", "name: Meet"),
            "rendezvous[0].name: \"Meet\" is not a name",
        ),
        (
            exit.replace("}]\n", &format!("}}, {}]\n", place("meet"))),
            "rendezvous[1].name: \"meet\" is used twice",
        ),
        (
            exit.replace("}]\n", &format!("}}, {many}]\n")),
            "rendezvous: has 5 rendezvous: at most 4",
        ),
        (
            exit.replace("meet:443", "meet"),
            "rendezvous[0].address: \"meet\" is not HOST:PORT",
        ),
        (
            exit.replace(&meet, &key(Role::Exit, 9)),
            "rendezvous[0].publicKeys[0]: the key of an exit",
        ),
        (
            entry.replace(&format!("[{meet}]"), "[]"),
            "connect[0].rendezvous.publicKeys: has 0 keys",
        ),
        (
            entry.replace("name: far, ", "name: far, address: 'b:1', "),
            "connect[0].address: an exit has an address or a rendezvous",
        ),
        (
            format!("{exit}transport: KCP\n"),
            "rendezvous: transport KCP: a rendezvous joins TCP",
        ),
    ] {
        let error = Config::from_yaml(&text).unwrap_err();
        assert!(said(&error).starts_with(message), "{message}: {error}");
    }
}

#[test]
fn members_and_the_keys_of_a_rendezvous_change_while_running() {
    for (text, byte) in meeting().into_iter().zip([7, 7, 8]) {
        let running = Config::from_yaml(&text).unwrap();
        let role = match running.role {
            Role::Rendezvous => Role::Exit,
            _ => Role::Rendezvous,
        };
        let changed = text.replace(&key(role, byte), &key(role, 9));
        assert_ne!(changed, text);
        let changed = Config::from_yaml(&changed).unwrap();
        assert!(running.needing_restart(&changed).is_empty());
        assert_eq!(running.reloaded(&changed), changed);
        assert_ne!(running.trusted(), changed.trusted());
        let moved = Config::from_yaml(&text.replace("meet:443", "other:443")).unwrap();
        let is_leaf = running.role != Role::Rendezvous;
        assert_eq!(!running.needing_restart(&moved).is_empty(), is_leaf);
    }
}

#[test]
fn a_network_has_its_own_addresses_alone_and_mapped_ones_are_of_ipv4() {
    for (network, address, has) in [
        ("10.1.0.0/16", "10.1.255.255", true),
        ("10.1.0.0/16", "10.2.0.0", false),
        ("10.1.0.0/16", "::ffff:10.1.2.3", true),
        ("10.1.2.3", "10.1.2.3", true),
        ("10.1.2.3", "10.1.2.2", false),
        ("0.0.0.0/1", "127.255.255.255", true),
        ("0.0.0.0/1", "128.0.0.0", false),
        ("::ffff:10.1.0.0/112", "10.1.2.3", true),
        ("::ffff:10.1.0.0/112", "10.2.2.3", false),
        ("2001:db8::/32", "2001:db8:ffff::1", true),
        ("2001:db8::/32", "2001:db9::1", false),
        ("2001:db8::1", "2001:db8::1", true),
        ("::/1", "10.1.2.3", false),
        ("10.0.0.0/8", "2001:db8::1", false),
        // The NAT64 form of an address counts as a different address.
        ("10.1.0.0/16", "64:ff9b::a01:203", false),
    ] {
        let cidr: Cidr = network.parse().unwrap();
        let found = cidr.contains(address.parse().unwrap());
        assert_eq!(found, has, "{address} in {network}");
    }
    for (network, is_every) in [
        ("0.0.0.0/0", true),
        ("::/0", true),
        ("::ffff:0:0/96", true),
        ("0.0.0.0/1", false),
        ("::/96", false),
    ] {
        let cidr: Cidr = network.parse().unwrap();
        assert_eq!(cidr.is_every(), is_every, "{network}");
    }
}

#[test]
fn trusted_proxies_round_trip_and_are_taken_over_while_running() {
    let running = Config::from_yaml(EXIT).unwrap();
    assert!(!running.to_yaml().unwrap().contains("trustedProxies"));
    let text = format!("{EXIT}trustedProxies: [10.1.0.0/16, '2001:db8::1']\n");
    let config = Config::from_yaml(&text).unwrap();
    let written = config.to_yaml().unwrap();
    assert_eq!(Config::from_yaml(&written).unwrap(), config);
    assert!(running.needing_restart(&config).is_empty());
    assert_eq!(running.reloaded(&config), config);
    assert_eq!(running.static_part(), config.static_part());
    let [_, _, rendezvous] = meeting();
    assert!(Config::from_yaml(&(rendezvous + "trustedProxies: [10.1.0.0/16]\n")).is_ok());
}

#[test]
fn trusted_proxies_that_cannot_be_are_refused_by_their_path() {
    let with = |text: &str, networks: &str| format!("{text}trustedProxies: [{networks}]\n");
    let [_, leaf, _] = meeting();
    let unix = EXIT.replace("0.0.0.0:64000", "unix:/run/carriers.sock");
    let many = "10.0.0.1, ".repeat(TRUSTED_PROXIES_MAX + 1);
    for (text, message) in [
        (
            with(ENTRY, "10.0.0.0/8"),
            "trustedProxies: only an exit or a rendezvous accepts carriers: remove the field",
        ),
        (
            with(&leaf, "10.0.0.0/8"),
            "trustedProxies: an exit behind a rendezvous does not listen for carriers: remove the field",
        ),
        (
            with(&unix, "10.0.0.0/8"),
            "trustedProxies: is only for listen: ADDRESS:PORT, because other carriers have no client address",
        ),
        (
            with(&EXIT.replace("0.0.0.0:64000", "stdio"), "10.0.0.0/8"),
            "trustedProxies: is only for listen: ADDRESS:PORT",
        ),
        (
            with(EXIT, &many),
            "trustedProxies: has 65 entries, at most 64",
        ),
        (
            with(EXIT, "10.0.0.0/8, 0.0.0.0/0"),
            "trustedProxies[1]: 0.0.0.0/0 contains every address: list only the networks of the load balancers",
        ),
        (
            with(EXIT, "'::ffff:0:0/96'"),
            "trustedProxies[0]: ::ffff:0.0.0.0/96 contains every address",
        ),
        (
            with(EXIT, "lb.example.com"),
            "trustedProxies[0]: \"lb.example.com\" is not a network",
        ),
    ] {
        let error = Config::from_yaml(&text).unwrap_err();
        assert!(said(&error).starts_with(message), "{error}");
    }
}

/// A newer gateway may use a transport that this version does not know.
#[test]
fn a_transport_of_a_newer_gateway_hides_no_other_figure() {
    use crate::status::CarrierTransport;
    let transports: Vec<CarrierTransport> = serde_json::from_str(r#"["KCP", "Pigeon"]"#).unwrap();
    assert_eq!(transports, [CarrierTransport::Kcp, CarrierTransport::Other]);
    assert_eq!(transports[1].to_string(), "Other");
}
