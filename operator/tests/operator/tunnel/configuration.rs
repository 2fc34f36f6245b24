//! The configurations of gateways.

use muxtunnel_gateway_config::{
    BitRate, CongestionControl, Limits, Pool, Priority, Protocol, Rule, Timeouts, config_hash,
};
use muxtunnel_operator::tunnel_controller::build::config_map::expected_hash;

use super::build::{config, pod};
use super::*;

fn with(extra: &str) -> String {
    format!("{SMALLEST}{extra}")
}

#[test]
fn the_exit_may_dial_the_declared_targets_and_nothing_else() {
    let config = config(&built(SMALLEST), "office-tunnel-exit");
    let allow: Vec<_> = config.allow.iter().map(ToString::to_string).collect();
    assert_eq!(allow, ["shop.site.svc:80", "db.example.com.:5432"]);
    assert_eq!(config.listen.as_deref(), Some("[::]:64000"));
    assert!(config.forwards.is_empty());
}

#[test]
fn the_entry_listens_on_the_ports_and_dials_the_exits_service() {
    let config = config(&built(SMALLEST), "office-entry");
    let [exit] = &config.connect[..] else {
        panic!("{:?}", config.connect);
    };
    assert_eq!(
        exit.address.as_deref(),
        Some("office-tunnel-exit.site.svc:443")
    );
    let forwards: Vec<_> = config
        .forwards
        .iter()
        .map(|forward| format!("{} {}", forward.listen, forward.targets[0]))
        .collect();
    assert_eq!(
        forwards,
        [
            "[::]:8080 shop.site.svc:80",
            "[::]:443 db.example.com.:5432"
        ]
    );
}

#[test]
fn what_is_not_asked_for_is_left_to_the_gateways_defaults() {
    let config = config(&built(SMALLEST), "office-entry");
    assert_eq!(config.protocol, Protocol::Jmux);
    assert_eq!(config.congestion_control, CongestionControl::Auto);
    assert_eq!(config.timeouts, Timeouts::default());
    let default = Default::default();
    assert!(config.forwards.iter().all(|f| f.limits == default));
}

#[test]
fn protocol_and_congestion_control_reach_both_ends_and_need_new_pods() {
    let spec = SMALLEST.replace("protocol: JMUX", "protocol: Native, congestionControl: BBR");
    let (before, after) = (built(SMALLEST), built(&spec));
    for name in ["office-entry", "office-tunnel-exit"] {
        let config = config(&after, name);
        assert_eq!(config.protocol, Protocol::Native);
        assert_eq!(config.congestion_control, CongestionControl::Bbr);
        assert_ne!(pod(&before, name), pod(&after, name));
    }
}

#[test]
fn carriers_of_a_session_reach_the_entry_and_make_room_at_the_exit() {
    let spec = SMALLEST.replace(
        "protocol: JMUX",
        "protocol: Native, pool: {min: 2, max: 16}, resume: true",
    );
    let resources = built(&spec);
    let (entry, exit) = (
        config(&resources, "office-entry"),
        config(&resources, "office-tunnel-exit"),
    );
    assert_eq!(
        entry.pool,
        Some(Pool {
            min: 2,
            max: Some(16)
        })
    );
    assert!(entry.resume && exit.resume);
    assert_eq!(exit.pool, None);
    assert_eq!(exit.limits.carriers, 1024);

    let spec = SMALLEST.replace("protocol: JMUX", "protocol: Native, resume: false");
    let resources = built(&spec);
    for name in ["office-entry", "office-tunnel-exit"] {
        assert!(!config(&resources, name).resume);
    }
    assert_eq!(config(&resources, "office-entry").pool, Some(Pool::ONE));
}

#[test]
fn what_is_left_out_of_a_carrier_is_the_native_protocol_with_a_pool() {
    let resources = built(&SMALLEST.replace("carrier: {protocol: JMUX}", ""));
    let entry = config(&resources, "office-entry");
    assert_eq!(entry.protocol, Protocol::Native);
    assert_eq!(entry.pool, Some(Pool::GROWING));
    let exit = config(&resources, "office-tunnel-exit");
    assert_eq!((exit.protocol, exit.pool), (Protocol::Native, None));
    assert_eq!(config(&built(SMALLEST), "office-entry").pool, None);
}

#[test]
fn time_outs_priorities_and_limits_reach_running_gateways() {
    let limits = "name: db\n  priority: Interactive\n  limits: {streams: 100, opensPerSecond: 20, bitsPerSecond: 100M}";
    let spec = with("timeouts: {idleSeconds: 90, halfOpenSeconds: 2, keepaliveSeconds: 30}\n")
        .replace("name: db", limits);
    let (before, after) = (built(SMALLEST), built(&spec));
    for name in ["office-entry", "office-tunnel-exit"] {
        let expected = Timeouts {
            idle_seconds: Some(90),
            half_open_seconds: Some(2),
            keepalive_seconds: Some(30),
        };
        assert_eq!(config(&after, name).timeouts, expected);
        assert_eq!(pod(&before, name), pod(&after, name));
    }
    let forwards = config(&after, "office-entry").forwards;
    assert_eq!(forwards[0].limits, Default::default());
    assert_eq!(forwards[0].priority, Priority::Auto);
    assert_eq!(forwards[1].priority, Priority::Interactive);
    let expected = Limits {
        streams: Some(100),
        opens_per_second: Some(20),
        bits_per_second: Some(BitRate(100_000_000)),
    };
    assert_eq!(forwards[1].limits, expected);
}

#[test]
fn the_expected_hash_is_that_of_the_files_bytes() {
    let resources = built(SMALLEST);
    let config_map = &resources.config_maps[0];
    let (key, text) = config_map.data.iter().flatten().next().unwrap();
    assert_eq!(expected_hash(config_map, key), Some(config_hash(text)));
    assert_eq!(expected_hash(config_map, "config.yaml"), None);
}

#[test]
fn the_rules_are_the_exits() {
    let rules = "allow:\n- {host: '*.example.com', port: 8000, endPort: 8100}\n\
                 - {cidr: '2001:db8::/32', port: 443}\ndeny:\n- {host: '*', port: 25}\n";
    let own = built(&with(rules));
    let alone = built(&format!("kind: MuxExit\n{rules}"));
    let texts = |rules: &[Rule]| rules.iter().map(ToString::to_string).collect::<Vec<_>>();
    let expected = [
        "*.example.com.:8000-8100",
        "[2001:db8::]/32:443",
        "shop.site.svc:80",
        "db.example.com.:5432",
    ];
    let exit = config(&own, "office-tunnel-exit");
    assert_eq!(texts(&exit.allow), expected);
    assert_eq!(texts(&exit.deny), ["*:25"]);
    let exit = config(&alone, "office-exit");
    assert_eq!(texts(&exit.allow), expected[..2]);
    assert_eq!(texts(&exit.deny), ["*:25"]);
    let entry = config(&own, "office-entry");
    assert!(entry.allow.is_empty() && entry.deny.is_empty());
}

#[test]
fn a_missing_service_is_named_and_its_forward_stays() {
    let tunnel = valid_with(SMALLEST, &Dereferenced::default(), class());
    assert_eq!(
        unresolved(&tunnel),
        ["forward web: Service shop does not exist"]
    );
    let entry = config(&build(&tunnel, &settings()).unwrap(), "office-entry");
    let target = entry.forwards[0].targets[0].to_string();
    assert_eq!(
        (entry.forwards.len(), target.as_str()),
        (2, "shop.site.svc:80")
    );
    let wrong = SMALLEST.replace("port: 80}", "port: 81}");
    assert_eq!(
        unresolved(&valid(&wrong)),
        ["forward web: Service shop has no TCP port 81"]
    );
}

/// The next target is dialled if a dial fails, so a missing Service is no obstacle for the others.
#[test]
fn a_forward_has_its_targets_in_their_order() {
    let several = "targets: [{serviceRef: {name: shop}, port: 80}, {host: Second.example.com, port: 81}, \
                   {serviceRef: {name: gone}, port: 82}]";
    let spec = SMALLEST.replace("targets: [{serviceRef: {name: shop}, port: 80}]", several);
    let tunnel = valid(&spec);
    assert_eq!(
        unresolved(&tunnel),
        ["forward web: Service gone does not exist"]
    );
    let resources = build(&tunnel, &settings()).unwrap();
    let targets = tunnel.streams.forwards[0].targets.iter();
    let targets: Vec<_> = targets.map(ToString::to_string).collect();
    let expected = [
        "shop.site.svc:80",
        "second.example.com.:81",
        "gone.site.svc:82",
    ];
    assert_eq!(targets, expected);
    let allow = config(&resources, "office-tunnel-exit").allow;
    let allow: Vec<_> = allow.iter().map(ToString::to_string).collect();
    assert_eq!(allow[..3], expected);
}

/// The gateway reads its memory limit itself, because a LimitRange may set it.
#[test]
fn an_exit_knows_the_number_of_its_sessions_and_the_gateway_divides_its_memory() {
    let limits =
        "template: {spec: {containers: [{name: gateway, resources: {limits: {memory: 64Mi}}}]}}";
    let spec = with(&format!(
        "entry: {{replicas: 3, {limits}}}\nexit: {{{limits}}}\n"
    ));
    let resources = built(&spec);
    let memory = |name| config(&resources, name).memory;
    let default = muxtunnel_gateway_config::Memory::default();
    assert_eq!(memory("office-entry"), default);
    let four = muxtunnel_gateway_config::Memory {
        sessions: Some(4),
        ..default
    };
    assert_eq!(
        memory("office-tunnel-exit"),
        four,
        "three entries and one more"
    );
    let native = built(&spec.replace("protocol: JMUX", "protocol: Native"));
    let sessions = config(&native, "office-tunnel-exit").memory.sessions;
    assert_eq!(sessions, Some(13), "each entry has four workers");
    let http2 = built(&spec.replace("protocol: JMUX", "protocol: HTTP2, pool: {min: 1, max: 3}"));
    let sessions = config(&http2, "office-tunnel-exit").memory.sessions;
    assert_eq!(sessions, Some(39), "each session has three connections");
    // Another number of sessions is no roll-out.
    let more = built(&spec.replace("replicas: 3", "replicas: 5"));
    assert_eq!(
        pod(&more, "office-tunnel-exit"),
        pod(&resources, "office-tunnel-exit")
    );
}

#[test]
fn workers_are_counted_where_memory_is_and_each_has_its_session() {
    let native = |extra: &str| {
        let resources = built(&with(extra).replace("protocol: JMUX", "protocol: Native"));
        (
            config(&resources, "office-entry"),
            config(&resources, "office-tunnel-exit"),
        )
    };
    let (entry, exit) = native("");
    assert_eq!((entry.workers, exit.workers), (None, None));
    assert_eq!(exit.limits.carriers, 1024, "for every number of entries");
    let (_, exit) = native("entry: {replicas: 1}\n");
    assert_eq!(exit.limits.carriers, 1024, "16 on each of 64 cores");
    let (entry, exit) = native(
        "
entry: {replicas: 3, template: {spec: {containers: [{name: gateway, resources: {limits: {memory: 64Mi, cpu: 1500m}}}]}}}
exit: {template: {spec: {containers: [{name: gateway, resources: {limits: {memory: 112Mi}}}]}}}
",
    );
    assert_eq!((entry.workers, exit.workers), (Some(2), Some(4)));
    assert_eq!(exit.memory.sessions, Some(7));
    assert_eq!(exit.limits.carriers, 256);
    let jmux = built(&with(
        "entry: {template: {spec: {containers: [{name: gateway, resources: {limits: {memory: 64Mi, cpu: 2}}}]}}}",
    ));
    assert_eq!(config(&jmux, "office-entry").workers, None);
}
