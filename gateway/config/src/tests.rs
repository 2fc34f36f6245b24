use super::status::Limit;
use super::*;

const ENTRY: &str = "\
role: Entry
protocol: Jmux
security: {mode: None}
connect: exit.example.com:64000
admin: 0.0.0.0:64001
forwards:
- name: web
  listen: 0.0.0.0:8080
  target: {host: web.shop.svc, port: 80}
";

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
    let native = ENTRY.replace("protocol: Jmux\n", "");
    assert_eq!(pool(&native), Pool { min: 1, max: 4 });
    assert_eq!(pool(&format!("{native}resume: false\n")), Pool::ONE);
    assert_eq!(pool(&format!("{native}pool: {{max: 9}}\n")).max, 9);
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
        "protocol: Jmux",
        "protocol: Native\nmemory: {retain: 2Mi}\npool: {min: 2, max: 4}",
    );
    let several = Config::from_yaml(&several).unwrap();
    assert_eq!(several.memory.retain, ByteSize(2 << 20));
    assert_eq!(several.pool, Some(Pool { min: 2, max: 4 }));
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
    assert!(error.to_string().contains("line 2"), "{error}");
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
            "forwards[0].target.port: must be 1..=65535",
        ),
        (
            "exit.example.com:64000",
            "exit.example.com",
            "connect: \"exit.example.com\" is not HOST:PORT",
        ),
        (
            "exit.example.com:64000",
            "exit.example.com:64000,other.example.com",
            "connect: \"other.example.com\" is not HOST:PORT",
        ),
        (
            "name: web",
            "name: ''",
            "forwards[0].name: must have 1 to 63 characters",
        ),
        (
            "admin: 0.0.0.0:64001",
            "memory: {receive: 1Ki}",
            "memory.receive: 1Ki is below the least of 1Mi",
        ),
        (
            "admin: 0.0.0.0:64001",
            "memory: {retain: 512Ki}",
            "memory.retain: 512Ki is below the least of 1Mi",
        ),
        (
            "admin: 0.0.0.0:64001",
            "pool: {min: 1, max: 17}",
            "pool.max: must be 1..=16",
        ),
        (
            "admin: 0.0.0.0:64001",
            "pool: {min: 0}",
            "pool.min: must be 1..=16",
        ),
        (
            "admin: 0.0.0.0:64001",
            "pool: {min: 3, max: 2}",
            "pool.min: is more than pool.max",
        ),
        (
            "admin: 0.0.0.0:64001",
            "pool: {min: 2, max: 4}",
            "pool: only protocol Native has several carriers a session",
        ),
        (
            "protocol: Jmux",
            "protocol: Native\nresume: false\npool: {max: 4}",
            "pool: several carriers a session need resume: true",
        ),
        (
            "admin: 0.0.0.0:64001",
            "listen: 0.0.0.0:1",
            "listen: only an exit listens for carriers",
        ),
        (
            "admin: 0.0.0.0:64001",
            "limits: {streams: 0}",
            "limits.streams: must be 1..=1000000",
        ),
        (
            "admin: 0.0.0.0:64001",
            "packetBytes: 1023",
            "packetBytes: 1023 is below the least of 1024",
        ),
        (
            "admin: 0.0.0.0:64001",
            "workers: 65",
            "workers: must be 1..=64",
        ),
        (
            "admin: 0.0.0.0:64001",
            "timeouts: {idleSeconds: 2592001}",
            "timeouts.idleSeconds: must be 0..=2592000",
        ),
        (
            "admin: 0.0.0.0:64001",
            "timeouts: {halfOpenSeconds: 2592001}",
            "timeouts.halfOpenSeconds: must be 0..=2592000",
        ),
        (
            "listen: 0.0.0.0:8080",
            "limits: {streams: 0}\n  listen: 0.0.0.0:8080",
            "forwards[0].limits.streams: must be 1..=1000000",
        ),
        (
            "listen: 0.0.0.0:8080",
            "limits: {opensPerSecond: 1000001}\n  listen: 0.0.0.0:8080",
            "forwards[0].limits.opensPerSecond: must be 1..=1000000",
        ),
        (
            "listen: 0.0.0.0:8080",
            "limits: {rate: 99kbit}\n  listen: 0.0.0.0:8080",
            "forwards[0].limits.rate: 99kbit is not from 100kbit to 1000Gbit",
        ),
        (
            "listen: 0.0.0.0:8080",
            "limits: {rate: 5MB}\n  listen: 0.0.0.0:8080",
            "forwards[0].limits: \"5MB\" is not a rate such as 500kbit, 100Mbit or 1Gbit",
        ),
    ];
    for (from, to, message) in table {
        let error = Config::from_yaml(&ENTRY.replace(from, to)).unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
    }
}

#[test]
fn two_forwards_on_one_port_are_refused_with_the_port() {
    let twice =
        format!("{ENTRY}- name: other\n  listen: 0.0.0.0:8080\n  target: {{host: a, port: 1}}\n");
    let error = Config::from_yaml(&twice).unwrap_err();
    assert_eq!(
        error.to_string(),
        "forwards[1].listen: 0.0.0.0:8080 is used by more than one forward"
    );
}

#[test]
fn what_is_left_out_is_decided_here() {
    let config = Config::from_yaml(ENTRY).unwrap();
    assert_eq!(config.congestion_control, CongestionControl::Auto);
    assert_eq!(config.workers, None);
    let never_idle = Timeouts {
        idle_seconds: 0,
        half_open_seconds: 3600,
    };
    assert_eq!(config.timeouts, never_idle);
    assert!(config.forwards[0].limits.is_empty());
    assert_eq!(config.forwards[0].priority, Priority::Auto);
    let written = config.to_yaml().unwrap();
    assert!(!written.contains("rate") && !written.contains("priority"));
}

#[test]
fn everything_that_can_be_written_round_trips() {
    let text = ENTRY
        .replace("protocol: Jmux", "protocol: Native\ncongestionControl: Bbr")
        .replace(
            "admin:",
            "workers: 2\ntimeouts: {idleSeconds: 60, halfOpenSeconds: 0}\nadmin:",
        )
        + "  priority: Interactive\n  limits: {streams: 10, opensPerSecond: 5, rate: 100Mbit}\n";
    let config = Config::from_yaml(&text).unwrap();
    assert_eq!(config.forwards[0].priority, Priority::Interactive);
    assert_eq!(
        config.forwards[0].limits.rate.map(BitRate::bytes),
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
        .map(|(block, _)| Config::from_yaml(block).unwrap().role)
        .collect();
    assert_eq!(blocks, [Role::Entry, Role::Exit]);
}

#[test]
fn the_streams_of_jmux_alone_must_fit_into_the_memory() {
    let small = ENTRY.replace("admin: 0.0.0.0:64001", "memory: {receive: 16Mi}");
    let error = Config::from_yaml(&small).unwrap_err();
    assert_eq!(
        error.to_string(),
        "limits.streams: 4096 streams need a memory.receive of at least 64Mi with protocol Jmux, it is 16Mi"
    );
    Config::from_yaml(&small.replace("protocol: Jmux", "protocol: Native")).unwrap();
}

#[test]
fn only_forwards_allow_and_timeouts_reload() {
    let running = Config::from_yaml(ENTRY).unwrap();
    let patient =
        Config::from_yaml(&ENTRY.replace("admin:", "timeouts: {idleSeconds: 5}\nadmin:")).unwrap();
    assert!(patient.reloadable_from(&running));
    let moved = Config::from_yaml(&ENTRY.replace(":8080", ":9090")).unwrap();
    assert!(moved.reloadable_from(&running));
    let elsewhere =
        Config::from_yaml(&ENTRY.replace("exit.example.com", "other.example.com")).unwrap();
    assert!(!elsewhere.reloadable_from(&running));
}

#[test]
fn allow_entries_parse_and_print() {
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
    ] {
        assert_eq!(text.parse::<Allow>().unwrap().to_string(), text);
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
        "10.0.0.0/x",
        "*",
    ] {
        assert!(text.parse::<Allow>().is_err(), "{text:?}");
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
        ("500kbit", 500_000),
        ("100Mbit", 100_000_000),
        ("1Gbit", 1_000_000_000),
        ("1500kbit", 1_500_000),
    ] {
        assert_eq!(text.parse::<BitRate>().unwrap().0, bits);
        assert_eq!(BitRate(bits).to_string(), text);
    }
    for text in [
        "",
        "kbit",
        "100",
        "100mbit",
        "-1Mbit",
        "+1Mbit",
        "1.5Gbit",
        "99999999999999Gbit",
    ] {
        assert!(text.parse::<BitRate>().is_err(), "{text:?}");
    }
}

#[test]
fn priorities_parse() {
    for (text, priority) in [
        ("auto", Priority::Auto),
        ("interactive", Priority::Interactive),
        ("bulk", Priority::Bulk),
    ] {
        assert_eq!(text.parse(), Ok(priority));
    }
    let error = "urgent".parse::<Priority>().unwrap_err();
    assert!(error.contains("auto, interactive and bulk"), "{error}");
}

#[test]
fn the_hash_is_that_of_the_text() {
    // sha256sum of the empty text.
    assert_eq!(config_hash(""), "e3b0c44298fc1c14");
}

#[test]
fn a_limit_of_another_version_is_read_as_such() {
    let read = |text: &str| serde_json::from_str(text).unwrap();
    let limits: Vec<Limit> = read("[\"SendBuffer\", \"Moonlight\"]");
    assert_eq!(limits, [Limit::SendBuffer, Limit::Other]);
    let seconds: std::collections::BTreeMap<Limit, f64> =
        serde_json::from_str("{\"Moonlight\": 3.5, \"Cpu\": 1.0}").unwrap();
    assert_eq!((seconds[&Limit::Other], seconds[&Limit::Cpu]), (3.5, 1.0));
}

#[test]
fn a_limit_has_one_name_everywhere() {
    for limit in Limit::ALL {
        assert_eq!(serde_json::json!(limit), limit.as_str());
    }
}
