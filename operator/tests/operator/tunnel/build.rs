//! The rendered objects of a spec.

use muxtunnel_crds::ExternalTrafficPolicy;
use muxtunnel_gateway_config::{
    BitRate, Config, CongestionControl, Direction, ForwardLimits, Pool, Priority, Protocol, Rule,
    Security, Timeouts, config_hash,
};
use muxtunnel_operator::tunnel_controller::build::config_map::expected_hash;
use serde_json::{Value, json};

use super::*;

pub(super) fn config(resources: &Resources, name: &str) -> Config {
    let config_map = child(&resources.config_maps, name);
    let mut texts = config_map["data"].as_object().unwrap().values();
    let text = texts.next().unwrap().as_str().unwrap();
    assert_eq!(texts.next(), None);
    Config::from_yaml(text).unwrap()
}

pub(super) fn pod(resources: &Resources, name: &str) -> Value {
    child(&resources.deployments, name)["spec"]["template"].clone()
}

fn with(extra: &str) -> String {
    format!("{SMALLEST}{extra}")
}

#[test]
fn the_exit_may_dial_the_declared_targets_and_nothing_else() {
    let config = config(&built(SMALLEST), "office-tunnel-exit");
    let allow: Vec<_> = config
        .policy
        .allow
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(allow, ["shop.site.svc:80", "db.example.com.:5432"]);
    assert_eq!(config.listen.as_deref(), Some("[::]:64000"));
    assert!(config.forwards.is_empty());
}

#[test]
fn gateways_listen_on_all_addresses_of_both_families() {
    let resources = built(SMALLEST);
    let (entry, exit) = (
        config(&resources, "office-entry"),
        config(&resources, "office-tunnel-exit"),
    );
    assert_eq!(exit.listen.as_deref(), Some("[::]:64000"));
    let forwards = entry.forwards.iter().map(|forward| forward.listen.as_str());
    for listen in forwards
        .chain(entry.admin.as_deref())
        .chain(exit.admin.as_deref())
    {
        assert!(listen.starts_with("[::]:"), "{listen}");
    }
    for name in ["office-entry", "office-tunnel-exit"] {
        let service = child(&resources.services, name);
        assert_eq!(
            service["spec"]["ipFamilyPolicy"], "PreferDualStack",
            "{name}"
        );
    }
}

#[test]
fn the_entry_listens_on_the_ports_and_dials_the_exits_service() {
    let config = config(&built(SMALLEST), "office-entry");
    assert_eq!(
        config.connect.as_deref(),
        Some("office-tunnel-exit.site.svc:64000")
    );
    let forwards: Vec<_> = config
        .forwards
        .iter()
        .map(|forward| format!("{} {}", forward.listen, forward.target.as_ref().unwrap()))
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
fn services_lead_to_the_very_ports_that_are_listened_on() {
    let resources = built(SMALLEST);
    let entry = child(&resources.services, "office-entry");
    assert_eq!(entry["spec"]["type"], "ClusterIP");
    assert_eq!(
        entry["spec"]["ports"],
        json!([
            {"name": "web", "port": 8080, "targetPort": 8080, "protocol": "TCP"},
            {"name": "db", "port": 443, "targetPort": 443, "protocol": "TCP"},
        ])
    );
    let exit = child(&resources.services, "office-tunnel-exit");
    assert_eq!(exit["spec"]["ports"][0]["port"], 64000);
    assert_eq!(
        exit["spec"]["selector"],
        json!({
            "app.kubernetes.io/name": "muxtunnel",
            "app.kubernetes.io/instance": "office",
            "app.kubernetes.io/component": "exit",
            "app.kubernetes.io/managed-by": "muxtunnel-operator",
        })
    );
}

#[test]
fn a_native_session_finds_each_exits_pod_since_its_carriers_lead_to_one() {
    let native = built(&SMALLEST.replace("protocol: JMUX", "protocol: Native"));
    let service = child(&native.services, "office-tunnel-exit-headless");
    assert_eq!(service["spec"]["clusterIP"], "None");
    let exit = child(&native.services, "office-tunnel-exit");
    assert_eq!(service["spec"]["selector"], exit["spec"]["selector"]);
    assert_eq!(service["spec"]["ports"], exit["spec"]["ports"]);
    let entry = config(&native, "office-entry");
    assert_eq!(
        (entry.connect.as_deref(), entry.connect_fallback.as_deref()),
        (
            Some("office-tunnel-exit-headless.site.svc:64000"),
            Some("office-tunnel-exit.site.svc:64000")
        )
    );
    let alone = built(&format!(
        "side: Exit\n{}",
        SMALLEST.replace("protocol: JMUX", "protocol: Native")
    ));
    assert_eq!(alone.services.len(), 1);
    let jmux = built(SMALLEST);
    assert_eq!(jmux.services.len(), 2);
    assert_eq!(config(&jmux, "office-entry").connect_fallback, None);
}

#[test]
fn every_child_is_owned_by_the_tunnel_and_does_not_hold_up_its_deletion() {
    let resources = built(SMALLEST);
    let children = [
        child(&resources.service_accounts, "office-entry"),
        child(&resources.config_maps, "office-entry"),
        child(&resources.services, "office-entry"),
        child(&resources.deployments, "office-entry"),
        child(&resources.service_accounts, "office-tunnel-exit"),
        child(&resources.config_maps, "office-tunnel-exit"),
        child(&resources.services, "office-tunnel-exit"),
        child(&resources.deployments, "office-tunnel-exit"),
    ];
    for child in children {
        assert_eq!(
            child["metadata"]["ownerReferences"],
            json!([{
                "apiVersion": "muxtunnel.dev/v1alpha1",
                "kind": "MuxTunnel",
                "name": "office",
                "uid": "uid-office",
                "controller": true,
            }])
        );
        assert_eq!(child["metadata"]["namespace"], "site");
    }
}

#[test]
fn a_gateway_has_no_privilege_and_no_token() {
    let resources = built(SMALLEST);
    let account = child(&resources.service_accounts, "office-tunnel-exit");
    assert_eq!(account["automountServiceAccountToken"], false);
    let spec = &pod(&resources, "office-tunnel-exit")["spec"];
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["serviceAccountName"], "office-tunnel-exit");
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(spec["securityContext"]["runAsUser"], 65532);
    assert_eq!(
        spec["securityContext"]["seccompProfile"]["type"],
        "RuntimeDefault"
    );
    assert_eq!(
        spec["containers"][0]["securityContext"],
        json!({
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
        })
    );
    assert!(spec["initContainers"].is_null());
}

#[test]
fn a_change_of_forwards_changes_no_pod_template() {
    let before = built(SMALLEST);
    let after = built(&SMALLEST.replace("8080", "9090").replace("5432", "5433"));
    for name in ["office-entry", "office-tunnel-exit"] {
        assert_eq!(pod(&before, name), pod(&after, name));
        assert_ne!(
            child(&before.config_maps, name)["data"],
            child(&after.config_maps, name)["data"]
        );
    }
}

#[test]
fn a_change_that_needs_a_restart_changes_the_pod_template() {
    let side = "side: Entry\n";
    let spec = SMALLEST
        .replace(
            "service: {name: shop, port: http}",
            "address: {host: a.b, port: 1}",
        )
        .replace("protocol: JMUX,", "protocol: JMUX, address: 'one:64000',");
    let before = built(&format!("{side}{spec}"));
    let after = built(&format!("{side}{}", spec.replace("one:64000", "two:64000")));
    assert_ne!(pod(&before, "office-entry"), pod(&after, "office-entry"));
}

#[test]
fn what_is_not_asked_for_is_left_to_the_gateways_defaults() {
    let config = config(&built(SMALLEST), "office-entry");
    assert_eq!(config.protocol, Protocol::Jmux);
    assert_eq!(config.congestion_control, CongestionControl::Auto);
    assert_eq!(config.timeouts, Timeouts::default());
    assert!(config.forwards.iter().all(|f| f.limits.is_empty()));
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
    assert_eq!(entry.pool, Some(Pool { min: 2, max: 16 }));
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
    let resources = built(&SMALLEST.replace("protocol: JMUX, ", ""));
    let entry = config(&resources, "office-entry");
    assert_eq!(entry.protocol, Protocol::Native);
    assert_eq!(entry.pool, Some(Pool { min: 1, max: 4 }));
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
            idle_seconds: 90,
            half_open_seconds: 2,
            keepalive_seconds: 30,
        };
        assert_eq!(config(&after, name).timeouts, expected);
        assert_eq!(pod(&before, name), pod(&after, name));
    }
    let forwards = config(&after, "office-entry").forwards;
    assert!(forwards[0].limits.is_empty());
    assert_eq!(forwards[0].priority, Priority::Auto);
    assert_eq!(forwards[1].priority, Priority::Interactive);
    let expected = ForwardLimits {
        streams: Some(100),
        opens_per_second: Some(20),
        rate: Some(BitRate(100_000_000)),
    };
    assert_eq!(forwards[1].limits, expected);
}

#[test]
fn the_configuration_is_mounted_as_a_folder() {
    let spec = &pod(&built(SMALLEST), "office-entry")["spec"];
    let mount = &spec["containers"][0]["volumeMounts"][0];
    assert_eq!(mount["mountPath"], "/etc/muxgate");
    assert!(mount["subPath"].is_null());
    let items = &spec["volumes"][0]["configMap"]["items"];
    assert_eq!(items.as_array().unwrap().len(), 1);
    assert_eq!(items[0]["path"], "config.yaml");
    let config_map = child(&built(SMALLEST).config_maps, "office-entry");
    let key = items[0]["key"].as_str().unwrap();
    assert!(config_map["data"][key].is_string(), "{key}");
    assert_eq!(
        spec["containers"][0]["args"],
        json!(["run", "--config", "/etc/muxgate/config.yaml"])
    );
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
fn ports_below_1024_need_no_privilege_and_profiles_raise_the_buffers() {
    let sysctls = |extra: &str| {
        pod(&built(&with(extra)), "office-entry")["spec"]["securityContext"]["sysctls"].clone()
    };
    let unprivileged = json!({"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"});
    assert_eq!(sysctls(""), json!([unprivileged]));
    assert_eq!(sysctls("tuning: {profile: None}"), json!([unprivileged]));
    assert_eq!(
        sysctls("tuning: {profile: WAN}"),
        json!([
            unprivileged,
            {"name": "net.ipv4.tcp_rmem", "value": "4096 131072 134217728"},
            {"name": "net.ipv4.tcp_wmem", "value": "4096 65536 67108864"},
        ])
    );
    let own = "tuning: {profile: WAN, sysctls: [{name: net.ipv4.tcp_wmem, value: 1 2 3}]}";
    // Gateways get the sysctls only after a Job has tested them. The Job gets them at once.
    let probe = &built(&with(own)).probe_jobs[0];
    let probe = serde_json::to_value(probe).unwrap();
    assert_eq!(
        probe["spec"]["template"]["spec"]["securityContext"]["sysctls"][2],
        json!({"name": "net.ipv4.tcp_wmem", "value": "1 2 3"})
    );
}

#[test]
fn the_delay_line_is_a_sidecar_and_netem_a_container_that_exits() {
    let wan = |extra: &str| {
        pod(&built(&with(extra)), "office-entry")["spec"]["initContainers"][0].clone()
    };
    let line = wan("wanEmulation: {delayMilliseconds: 50}");
    assert_eq!(line["restartPolicy"], "Always");
    assert_eq!(
        line["startupProbe"]["exec"]["command"],
        json!([
            "/usr/local/bin/muxwan",
            "check",
            "--report",
            "/run/muxwan/report.json"
        ])
    );
    let args = "run --delay 50ms --port 64000 --backend auto --report /run/muxwan/report.json";
    assert_eq!(line["args"], json!(args.split(' ').collect::<Vec<_>>()));
    let netem = wan("wanEmulation: {delayMilliseconds: 1500, backend: Netem, scope: All}");
    assert!(netem["restartPolicy"].is_null() && netem["startupProbe"].is_null());
    let args = "run --delay 1s500ms --all --except-port 64001 --backend netem \
                --report /run/muxwan/report.json";
    assert_eq!(netem["args"], json!(args.split(' ').collect::<Vec<_>>()));
    let impaired = wan("wanEmulation: {delayMilliseconds: 50, jitterMilliseconds: 5, lossPPM: 5000, bitsPerSecond: 100M}");
    let args = "run --delay 50ms --jitter 5ms --loss 0.5% --rate 100Mbit --port 64000 --backend auto \
                --report /run/muxwan/report.json";
    assert_eq!(impaired["args"], json!(args.split(' ').collect::<Vec<_>>()));
}

#[test]
fn net_admin_and_root_are_the_wan_containers_alone() {
    let spec = pod(&built(&with("wanEmulation: {delayMilliseconds: 50}")), "office-tunnel-exit")["spec"].clone();
    let wan = &spec["initContainers"][0]["securityContext"];
    assert_eq!(wan["runAsUser"], 0);
    assert_eq!(
        wan["capabilities"],
        json!({"drop": ["ALL"], "add": ["NET_ADMIN"]})
    );
    let gateway = &spec["containers"][0]["securityContext"];
    assert_eq!(gateway["capabilities"], json!({"drop": ["ALL"]}));
    assert!(gateway["runAsUser"].is_null());
}

#[test]
fn emulation_is_left_out_where_it_is_switched_off_or_the_delay_is_zero() {
    let off = Settings {
        wan_emulation: false,
        ..settings()
    };
    let tunnel = valid_with(&with("wanEmulation: {delayMilliseconds: 50}"), &shop(), &off);
    assert!(tunnel.wan.is_none() && tunnel.wan_disabled);
    let resources = build(&tunnel, &off).unwrap();
    assert!(pod(&resources, "office-tunnel-exit")["spec"]["initContainers"].is_null());
    let tunnel = valid(&with("wanEmulation: {delayMilliseconds: 0}"));
    assert!(tunnel.wan.is_none() && !tunnel.wan_disabled);
    assert!(valid(&with("wanEmulation: {delayMilliseconds: 0, lossPPM: 10000}")).wan.is_some());
}

/// Remote entries need a public Service for carriers.
#[test]
fn what_an_exit_listens_for_is_inside_the_cluster_unless_the_spec_says_otherwise() {
    let spec = |exit: &str| {
        let native = with(&format!(
            "exit: {{service: {{type: LoadBalancer}}{exit}}}\n"
        ));
        native
            .replace("protocol: JMUX", "protocol: Native")
            .replace(
                "port: 8080",
                "direction: ExitToEntry\n  port: 8080\n  from: {all: true}",
            )
    };
    let type_of = |spec: &str, name: &str| {
        let service = child(&built(spec).services, name);
        let public = service["metadata"]["annotations"]["example.com/pool"].clone();
        (service["spec"]["type"].clone(), public)
    };
    let asked = spec("");
    assert_eq!(type_of(&asked, "office-tunnel-exit").0, "LoadBalancer");
    assert_eq!(type_of(&asked, "office-reverse").0, "ClusterIP");
    let asked = spec(", reverseService: {type: NodePort, annotations: {example.com/pool: b}}");
    assert_eq!(
        type_of(&asked, "office-tunnel-exit"),
        (json!("LoadBalancer"), Value::Null)
    );
    assert_eq!(
        type_of(&asked, "office-reverse"),
        (json!("NodePort"), json!("b"))
    );
}

#[test]
fn a_public_service_keeps_the_addresses_of_clients_only_where_the_spec_says_so() {
    let policy = |exit: &str, name: &str| {
        let spec = with(&format!("exit: {{{exit}}}\n")).replace(
            "port: 8080",
            "direction: ExitToEntry\n  port: 8080\n  from: {all: true}",
        );
        let spec = spec.replace("protocol: JMUX", "protocol: Native");
        child(&built(&spec).services, name)["spec"]["externalTrafficPolicy"].clone()
    };
    for type_ in ["NodePort", "LoadBalancer"] {
        for (service, name) in [
            ("service", "office-tunnel-exit"),
            ("reverseService", "office-reverse"),
        ] {
            let unsaid = format!("{service}: {{type: {type_}}}");
            assert_eq!(policy(&unsaid, name), Value::Null, "{unsaid}");
            for asked in ["Cluster", "Local"] {
                let said = format!("{service}: {{type: {type_}, externalTrafficPolicy: {asked}}}");
                assert_eq!(policy(&said, name), asked, "{said}");
            }
            let said = format!("{service}: {{type: {type_}, externalTrafficPolicy: Local}}");
            assert_eq!(policy(&said, "office-tunnel-exit-headless"), Value::Null);
            assert_eq!(policy(&said, "office-entry"), Value::Null);
        }
    }
    // This stored spec has `externalTrafficPolicy`, but the type ClusterIP. The API server would
    // refuse a Service with both.
    let mut stored = valid(SMALLEST);
    let service = &mut stored.exit.as_mut().unwrap().service;
    service.external_traffic_policy = Some(ExternalTrafficPolicy::Local);
    let services = build(&stored, &settings()).unwrap().services;
    let spec = &child(&services, "office-tunnel-exit")["spec"];
    assert_eq!(spec["type"], "ClusterIP");
    assert_eq!(spec["externalTrafficPolicy"], Value::Null);
}

#[test]
fn a_reverse_forward_is_listened_for_by_the_exit_and_dialled_by_the_entry() {
    let native = SMALLEST.replace("protocol: JMUX", "protocol: Native");
    let tunnel = built(&native.replace("name: web", "name: web\n  direction: ExitToEntry"));
    let ports = |name: &str| {
        let service = child(&tunnel.services, name);
        let ports = service["spec"]["ports"].as_array().unwrap().clone();
        let number = |port: Value| port["port"].as_i64().unwrap();
        ports.into_iter().map(number).collect::<Vec<_>>()
    };
    assert_eq!(ports("office-tunnel-exit"), [64000]);
    assert_eq!(ports("office-reverse"), [8080]);
    assert_eq!(ports("office-entry"), [443]);
    let (exit, entry) = (
        config(&tunnel, "office-tunnel-exit"),
        config(&tunnel, "office-entry"),
    );
    assert_eq!(exit.allow_listen[0].to_string(), "[::]:8080");
    // The rules permit the ports to the identities that the exit accepts.
    let reverse = |peers: &str| {
        let security = format!(
            "{{mode: MutualTls, entry: {{secretName: near, peers: [exit.example.com]}}, \
             exit: {{secretName: far, peers: [{peers}]}}}}"
        );
        let text = native.replace("name: web", "name: web\n  direction: ExitToEntry");
        let tunnel = built(&text.replace("{mode: None}", &security));
        let rules = config(&tunnel, "office-tunnel-exit").allow_listen;
        rules.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let (a, b) = ("[::]:8080,peer=spiffe://a", "[::]:8080,peer=spiffe://b");
    assert_eq!(reverse("'spiffe://a'"), [a]);
    assert_eq!(reverse("'spiffe://a', 'spiffe://b'"), [a, b]);
    let allow: Vec<_> = exit.policy.allow.iter().map(ToString::to_string).collect();
    assert_eq!(allow, ["db.example.com.:5432"]);
    assert_eq!(entry.forwards[0].direction, Direction::ExitToEntry);
    assert_eq!(entry.forwards[1].direction, Direction::EntryToExit);

    let all = native.replace("listen:", "direction: ExitToEntry\n  listen:");
    let tunnel = built(&all);
    let names: Vec<_> = tunnel
        .services
        .iter()
        .map(|s| s.metadata.name.clone().unwrap())
        .collect();
    assert_eq!(
        names,
        ["office-tunnel-exit", "office-reverse", "office-tunnel-exit-headless"]
    );
}

#[test]
fn the_policy_is_the_exits() {
    let tunnel = built(&with(
        "policy:\n  allow:\n  - {host: '*.example.com', port: 8000, endPort: 8100}\n  \
         - {cidr: '2001:db8::/32', port: 443, peer: 'spiffe://a'}\n  deny:\n  - {host: '*', port: 25}\n",
    ));
    let texts = |rules: &[Rule]| rules.iter().map(ToString::to_string).collect::<Vec<_>>();
    let policy = config(&tunnel, "office-tunnel-exit").policy;
    assert_eq!(
        texts(&policy.allow),
        [
            "*.example.com.:8000-8100",
            "[2001:db8::]/32:443,peer=spiffe://a",
            "shop.site.svc:80",
            "db.example.com.:5432"
        ]
    );
    assert_eq!(texts(&policy.deny), ["*:25"]);
    assert!(config(&tunnel, "office-entry").policy.is_empty());

    let bad = with("deny: [{host: a, port: 2, endPort: 1}]");
    let judged = validate(&super::tunnel(&bad), &shop(), &settings());
    let Err(Hindrance::Invalid(problem)) = judged else {
        panic!("{judged:?}");
    };
    assert_eq!(
        problem,
        "policy.deny[0]: endPort needs a port that is not greater than endPort"
    );
}

/// [`SMALLEST`] with `security` for carriers.
fn secured(security: &str) -> String {
    SMALLEST.replace("security: {mode: None}", &format!("security: {security}"))
}

#[test]
fn keys_come_from_the_secret_of_each_side() {
    let tunnel = built(&secured(
        "{mode: MutualTls, entry: {secretName: near, peers: [exit.example.com]}, \
         exit: {secretName: far, peers: ['spiffe://example.org/entry']}}",
    ));
    for (name, secret, peer) in [
        ("office-entry", "near", "exit.example.com"),
        ("office-tunnel-exit", "far", "spiffe://example.org/entry"),
    ] {
        let spec = &pod(&tunnel, name)["spec"];
        let volume =
            json!({"name": "keys", "secret": {"secretName": secret, "defaultMode": 0o440}});
        assert_eq!(spec["volumes"][1], volume);
        let mount = json!({"name": "keys", "mountPath": "/etc/muxgate-keys", "readOnly": true});
        assert_eq!(spec["containers"][0]["volumeMounts"][1], mount);
        assert_eq!(spec["securityContext"]["fsGroup"], 65532);
        let Security::MutualTls(tls) = config(&tunnel, name).security else {
            panic!("no TLS");
        };
        assert_eq!(tls.key, std::path::Path::new("/etc/muxgate-keys/tls.key"));
        assert_eq!(tls.peers, [peer]);
    }
    let plain = pod(&built(SMALLEST), "office-entry");
    assert_eq!(plain["spec"]["volumes"].as_array().map(Vec::len), Some(1));
}

/// Each pod has its own private key and the public key of the other end, and no other end's private
/// key.
#[test]
fn keys_of_both_ends_come_from_one_secret() {
    let tunnel = built(MANAGED);
    for (name, own, other) in [
        ("office-entry", "entry-key", "exit-publicKey"),
        ("office-tunnel-exit", "exit-key", "entry-publicKey"),
    ] {
        let spec = &pod(&tunnel, name)["spec"];
        let items = json!([{"key": own, "path": "key"}, {"key": other, "path": "peers"}]);
        let secret =
            json!({"secretName": "office-pair-1-bcdfg", "defaultMode": 0o440, "items": items});
        assert_eq!(
            spec["volumes"][1],
            json!({"name": "keys", "secret": secret})
        );
        let Security::PublicKeys(keys) = config(&tunnel, name).security else {
            panic!("no keys");
        };
        let peers = keys.peers_file.unwrap();
        assert_eq!(peers, std::path::Path::new("/etc/muxgate-keys/peers"));
        assert!(keys.peers.is_empty());
    }
}

#[test]
fn an_entry_pins_the_keys_of_its_exit_and_one_that_is_none_is_named() {
    let spec = format!("side: Entry\n{ELSEWHERE}");
    let Security::PublicKeys(keys) = config(&built(&spec), "office-entry").security else {
        panic!("no keys");
    };
    assert_eq!(keys.peers[0].public_keys[0].to_string(), EXIT_KEY);
    let wrong = spec.replace(EXIT_KEY, ENTRY_KEY);
    let judged = validate(&super::tunnel(&wrong), &shop(), &settings());
    let Err(Hindrance::Invalid(problem)) = judged else {
        panic!("{judged:?}");
    };
    let expected = "carrier.publicKeys[0]: the key of an entry (mte1...), but an exit (mtx1...) is expected here";
    assert_eq!(problem, expected);
}

#[test]
fn each_side_alone_makes_its_own_children_alone() {
    let entry = built(
        "
side: Entry
forwards:
- {name: web, port: 80, targets: [{host: shop.site.svc, port: 80}]}
carrier: {protocol: JMUX, address: 'exit.example.com:64000'}\nsecurity: {mode: None}
",
    );
    assert_eq!(entry.deployments.len(), 1);
    let dialled = config(&entry, "office-entry").connect;
    assert_eq!(dialled.as_deref(), Some("exit.example.com:64000"));
    let exit = built(&format!("side: Exit\n{SMALLEST}"));
    assert_eq!(exit.deployments.len(), 1);
    assert_eq!(config(&exit, "office-tunnel-exit").policy.allow.len(), 2);
}

#[test]
fn a_missing_service_is_named_and_the_other_forwards_work() {
    let tunnel = valid_with(SMALLEST, &Dereferenced::default(), &settings());
    assert_eq!(
        tunnel.unresolved,
        ["forward web: Service shop does not exist"]
    );
    assert_eq!(tunnel.forwards.len(), 1);
    let wrong = SMALLEST.replace("port: http", "port: https");
    assert_eq!(
        valid(&wrong).unresolved,
        ["forward web: Service shop has no TCP port https"]
    );
    let udp = SMALLEST.replace("port: http", "port: dns");
    assert_eq!(
        valid(&udp).unresolved,
        ["forward web: Service shop has no TCP port dns"]
    );
}

#[test]
fn the_entrys_service_keeps_its_ports_while_a_target_is_missing() {
    let tunnel = valid_with(SMALLEST, &Dereferenced::default(), &settings());
    let resources = build(&tunnel, &settings()).unwrap();
    let service = child(&resources.services, "office-entry");
    assert_eq!(service["spec"]["ports"].as_array().unwrap().len(), 2);
}

#[test]
fn a_missing_service_with_a_numbered_port_keeps_its_forward() {
    let spec = SMALLEST.replace("port: http", "port: 80");
    let tunnel = valid_with(&spec, &Dereferenced::default(), &settings());
    assert_eq!(tunnel.unresolved.len(), 1);
    assert_eq!(tunnel.forwards.len(), 2);
    let target = tunnel.forwards[0].target.as_ref().unwrap();
    assert_eq!(target.0, "shop.site.svc");
}

#[test]
fn what_an_older_schema_let_through_is_refused_with_a_sentence() {
    let db = |limits: &str| SMALLEST.replace("name: db", &format!("name: db\n  limits: {limits}"));
    for (spec, sentence) in [
        (
            SMALLEST.replace("443", "8080"),
            "listen.port 8080 is used by more than one forward: choose another port",
        ),
        (
            with("timeouts: {idleSeconds: 2595600}"),
            "timeouts.idle 721h is out of range: use 1s to 720h, or 0s for no time-out",
        ),
        (
            db("{streams: 0}"),
            "forward db: limits.streams 0 is not a number from 1 to 1000000",
        ),
        (
            db("{rate: fast}"),
            "forward db: limits.rate \"fast\" is not a rate from 100kbit to 1000Gbit",
        ),
        (
            with("exit: {service: {externalTrafficPolicy: Local}}"),
            "exit.service.externalTrafficPolicy Local is for type NodePort or LoadBalancer: remove it, or set \
             exit.service.type",
        ),
        (
            with("exit: {reverseService: {type: ClusterIP, externalTrafficPolicy: Cluster}}"),
            "exit.reverseService.externalTrafficPolicy Cluster is for type NodePort or LoadBalancer: remove it, or \
             set exit.reverseService.type",
        ),
        (
            with("entry: {service: {externalTrafficPolicy: Local}}"),
            "entry.service.externalTrafficPolicy Local is for type NodePort or LoadBalancer: remove it, or set \
             entry.service.type",
        ),
    ] {
        let Err(Hindrance::Invalid(problem)) = validate(&tunnel(&spec), &shop(), &settings())
        else {
            panic!("accepted");
        };
        assert_eq!(problem, sentence);
    }
}

#[test]
fn the_template_of_a_side_reaches_its_pods_and_own_labels_win() {
    let mut settings = settings();
    settings
        .permitted_labels
        .push("app.kubernetes.io/instance".parse().unwrap());
    let spec = with(
        "
entry:
  replicas: 2
  service: {type: LoadBalancer, annotations: {example.com/pool: public}}
  template:
    resources: {limits: {memory: 512Mi}, requests: {cpu: 100m}}
    nodeSelector: {zone: a}
    tolerations: [{key: edge, operator: Exists}]
    priorityClassName: high
    labels: {team: edge, app.kubernetes.io/instance: other}
    imagePullSecrets: [{name: registry}]
",
    );
    let spec = spec
        .replace("{port: 8080}", "{port: 8080, from: {all: true}}")
        .replace("{port: 443}", "{port: 443, from: {all: true}}");
    let resources = build(&valid_with(&spec, &shop(), &settings), &settings).unwrap();
    let deployment = child(&resources.deployments, "office-entry");
    assert_eq!(deployment["spec"]["replicas"], 2);
    let template = &deployment["spec"]["template"];
    assert_eq!(template["metadata"]["labels"]["team"], "edge");
    let instance = &template["metadata"]["labels"]["app.kubernetes.io/instance"];
    assert_eq!(instance, "office");
    let spec = &template["spec"];
    assert_eq!(spec["nodeSelector"]["zone"], "a");
    assert_eq!(spec["tolerations"][0]["key"], "edge");
    assert_eq!(spec["priorityClassName"], "high");
    assert_eq!(spec["imagePullSecrets"][0]["name"], "registry");
    assert_eq!(
        spec["containers"][0]["resources"],
        json!({"requests": {"cpu": "100m"}, "limits": {"memory": "512Mi"}})
    );
    let service = child(&resources.services, "office-entry");
    assert_eq!(service["spec"]["type"], "LoadBalancer");
    assert_eq!(
        service["metadata"]["annotations"]["example.com/pool"],
        "public"
    );
    assert!(pod(&resources, "office-tunnel-exit")["spec"]["nodeSelector"].is_null());
}

/// The gateway reads its memory limit itself, because a LimitRange may set it.
#[test]
fn an_exit_knows_the_number_of_its_sessions_and_the_gateway_divides_its_memory() {
    let limits = "template: {spec: {containers: [{name: gateway, resources: {limits: {memory: 64Mi}}}]}}";
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
    assert_eq!(memory("office-tunnel-exit"), four, "three entries and one more");
    let native = built(&spec.replace("protocol: JMUX", "protocol: Native"));
    let sessions = config(&native, "office-tunnel-exit").memory.sessions;
    assert_eq!(sessions, Some(13), "each entry has four workers");
    // Another number of sessions is no roll-out.
    let more = built(&spec.replace("replicas: 3", "replicas: 5"));
    assert_eq!(pod(&more, "office-tunnel-exit"), pod(&resources, "office-tunnel-exit"));
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
    assert_eq!(exit.limits.carriers, 512, "four on each of 64 cores, twice");
    let (entry, exit) = native(
        "
entry: {replicas: 3, template: {spec: {containers: [{name: gateway, resources: {limits: {memory: 64Mi, cpu: 1500m}}}]}}}
exit: {template: {spec: {containers: [{name: gateway, resources: {limits: {memory: 112Mi}}}]}}}
",
    );
    assert_eq!((entry.workers, exit.workers), (Some(2), Some(4)));
    assert_eq!(exit.memory.sessions, Some(7));
    assert_eq!(exit.limits.carriers, 64);
    let jmux = built(&with(
        "entry: {template: {spec: {containers: [{name: gateway, resources: {limits: {memory: 64Mi, cpu: 2}}}]}}}",
    ));
    assert_eq!(config(&jmux, "office-entry").workers, None);
}

/// The operator's cache contains every ReplicaSet of every tunnel.
#[test]
fn few_old_replica_sets_are_kept() {
    for deployment in built(SMALLEST).deployments {
        let spec = deployment.spec.unwrap();
        assert_eq!(spec.revision_history_limit, Some(2));
    }
}
