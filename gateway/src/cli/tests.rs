use muxtunnel_gateway_config::{
    BitRate, CongestionControl, Drain, Limits, Memory, Priority, Protocol, ProxyListen, Timeouts,
    WebSocket, key_text,
};

use super::*;

fn config(line: &str) -> Config {
    let words = ["muxgate"].into_iter().chain(line.split(' '));
    match Cli::try_parse_from(words).unwrap().task() {
        Ok(Task::Run(Source::Flags(config))) => *config,
        Ok(_) => panic!("{line} has no configuration"),
        Err(problem) => panic!("{problem}"),
    }
}

#[test]
fn flags_mean_what_a_file_would_say() {
    let entry = "entry --security none --connect far:64000 --forward 1:a:1";
    let defaults = config(entry);
    assert_eq!(defaults.protocol, Protocol::Native);
    assert_eq!((defaults.resume, defaults.pool()), (true, Pool::GROWING));
    assert_eq!(defaults.timeouts, Timeouts::default());
    assert_eq!(defaults.congestion_control, CongestionControl::Auto);
    assert!(defaults.workers.is_none() && defaults.forwards[0].limits == Limits::default());
    let all = config(&format!(
        "{entry} --forward 2:b:2 --congestion-control BBR --workers 3 --idle-timeout 60 \
         --half-open-timeout 0 --keepalive 30 --limit-streams 4 --limit-opens 5 --limit-rate 100M"
    ));
    assert_eq!(all.congestion_control, CongestionControl::Bbr);
    assert_eq!(all.workers, Some(3));
    let timeouts = Timeouts {
        idle_seconds: Some(60),
        half_open_seconds: Some(0),
        keepalive_seconds: Some(30),
    };
    assert_eq!(all.timeouts, timeouts);
    let limits = Limits {
        streams: Some(4),
        opens_per_second: Some(5),
        bits_per_second: Some(BitRate(100_000_000)),
    };
    assert!(all.forwards.iter().all(|forward| forward.limits == limits));
    let none_resumed = config(&format!("{entry} --no-resume"));
    assert_eq!(
        (none_resumed.resume, none_resumed.pool()),
        (false, Pool::ONE)
    );
    let jmux = config(&format!("{entry} --protocol JMUX"));
    assert_eq!((jmux.protocol, jmux.pool()), (Protocol::Jmux, Pool::ONE));
    for (carriers, min, max) in [("4", 4, 4), ("2..8", 2, 8)] {
        let pool = config(&format!("{entry} --carriers {carriers}")).pool();
        assert_eq!((pool.min, pool.max()), (min, max));
    }
    let exit = config("exit --security none --listen 0.0.0.0:64000");
    assert_eq!((exit.protocol, exit.pool()), (Protocol::Native, Pool::ONE));
    let exit =
        config("exit --security none --listen 0.0.0.0:64000 --allow *.a:1-9 --deny b.a,peer=x");
    assert_eq!(exit.allow, ["*.a:1-9".parse().unwrap()]);
    assert_eq!(exit.deny, ["b.a,peer=x".parse().unwrap()]);
    let exit = config("exit --security none --listen 0.0.0.0:64000 --allow-listen 80-90");
    assert_eq!(exit.allow_listen, ["127.0.0.1:80-90".parse().unwrap()]);
    let proxies = "--trusted-proxy 10.0.0.0/8 --trusted-proxy 2001:db8::1";
    let [member, meet_key] = [Role::Exit, Role::Rendezvous].map(|role| key_text(role, &[7; 32]));
    let meet = format!("rendezvous --key /k --member {member}");
    for role in ["exit --security none", &meet] {
        let config = config(&format!("{role} --listen 0.0.0.0:1 {proxies}"));
        let expected = ["10.0.0.0/8", "2001:db8::1"].map(|text| text.parse().unwrap());
        assert_eq!(config.trusted_proxies, expected);
        config.check().unwrap();
    }
    let entry = "entry --security none --connect far:64000 --reverse 8080:web:80,bulk";
    let leaf = format!("--rendezvous meet:1 --rendezvous-key {meet_key}");
    let near = key_text(Role::Entry, &[7; 32]);
    let visits = config(&format!(
        "entry --key /k --peer {member} {leaf} --forward 1:a:1"
    ));
    assert_eq!(visits.connect[0].dialled(), Some("meet:1"));
    assert_eq!(visits.connect[0].public_keys[0].to_string(), member);
    let visited = config(&format!("exit --key /k --peer {near} {leaf}"));
    assert_eq!(visited.rendezvous[0].address, "meet:1");
    for config in [visits, visited] {
        assert!(config.listen.is_none());
        config.check().unwrap();
    }
    let meet = config(&format!("{meet} --listen 0.0.0.0:1 --members /m"));
    assert_eq!(meet.role, Role::Rendezvous);
    assert_eq!(meet.members[0].public_keys[0].to_string(), member);
    meet.check().unwrap();
    let reverse = &config(entry).reverse_forwards[0];
    assert_eq!(
        (&*reverse.listen, reverse.priority),
        ("127.0.0.1:8080", Priority::Bulk)
    );
}

#[test]
fn memory_limits_and_drain_are_those_of_the_file() {
    let exit = "exit --security none --listen 0.0.0.0:64000";
    let defaults = config(exit);
    assert_eq!(defaults.memory, Memory::default());
    assert_eq!(defaults.limits, GatewayLimits::default());
    assert_eq!(defaults.drain, Drain::default());
    let bounds =
        "--memory-receive 16Mi --memory-retain 2Mi --memory-stall-seconds 0 --session-streams 7";
    let drain = "--drain-accept-seconds 1 --drain-deadline-seconds 2";
    let file = "memory: {receive: 16Mi, retain: 2Mi, stallSeconds: 0}\nlimits: {streams: 7, carriers: 9}\n\
                drain: {acceptSeconds: 1, deadlineSeconds: 2}\n";
    let file = format!("role: Exit\nsecurity: {{mode: None}}\nlisten: 0.0.0.0:64000\n{file}");
    let typed = config(&format!("{exit} {bounds} {drain} --limit-carriers 9"));
    assert_eq!(typed, Config::from_yaml(&file).unwrap());
    let meet = "rendezvous --listen 0.0.0.0:1 --key /k --members /m";
    let meet = config(&format!("{meet} {drain} --limit-carriers 9"));
    assert_eq!((meet.drain, meet.limits.carriers), (typed.drain, 9));

    for (flags, field) in [
        ("--memory-receive 1023Ki", "memory.receive"),
        ("--memory-retain 1", "memory.retain"),
        ("--memory-stall-seconds 2592001", "memory.stallSeconds"),
        ("--session-streams 0", "limits.streams"),
        ("--limit-carriers 1025", "limits.carriers"),
        ("--drain-accept-seconds 26", "drain.acceptSeconds"),
    ] {
        let error = config(&format!("{exit} {flags}")).check().unwrap_err();
        assert!(error.to_string().contains(field), "{flags}: {error}");
    }
}

#[test]
fn each_kind_of_listener_is_a_forward_and_a_password_is_for_those_that_can_say_it() {
    let entry = "entry --security none --connect far:64000";
    let all = config(&format!(
        "{entry} --socks5 1080 --http-proxy 0.0.0.0:3128 --auto 1081 --transparent 15001 \
         --forward 8080:a:80 --proxy-auth alice --proxy-password-file password"
    ));
    all.check().unwrap();
    let seen: Vec<_> = all
        .proxies
        .iter()
        .map(|proxy| (proxy.protocol, &*proxy.listen, proxy.user.as_deref()))
        .collect();
    let expected = [
        (ProxyListen::Socks5, "127.0.0.1:1080", Some("alice")),
        (ProxyListen::Http, "0.0.0.0:3128", Some("alice")),
        (ProxyListen::Auto, "127.0.0.1:1081", Some("alice")),
        (ProxyListen::Transparent, "127.0.0.1:15001", None),
    ];
    assert_eq!(seen, expected);
    assert_eq!(all.forwards[0].listen, "127.0.0.1:8080");
}

#[test]
fn the_address_of_a_web_socket_selects_its_transport() {
    let entry = "entry --security none --forward 1:a:1 --connect";
    for (line, transport, path) in [
        ("ws://far:1/a", Transport::WebSocket, Some("/a")),
        ("far:1", Transport::Tcp, None),
        ("ws://far:1/a --transport auto", Transport::Auto, Some("/a")),
        ("far:1 --transport KCP", Transport::Kcp, None),
    ] {
        let config = config(&format!("{entry} {line}"));
        config.check().unwrap();
        let found = config
            .web_socket
            .as_ref()
            .map(|WebSocket { path, .. }| &**path);
        assert_eq!((config.transport, found), (transport, path), "{line}");
    }
    for line in [
        "ws://far:1/a --transport TCP",
        "far:1 --transport WebSocket",
    ] {
        let error = config(&format!("{entry} {line}")).check().unwrap_err();
        assert!(error.to_string().starts_with("webSocket: "), "{error}");
    }
}

#[test]
fn an_entry_has_a_listener_or_a_network() {
    let entry = "entry --security none --connect far:64000";
    let words = ["muxgate"].into_iter().chain(entry.split(' '));
    let refused = Cli::try_parse_from(words).unwrap().task().err().unwrap();
    assert!(
        refused.contains("--forward") && refused.contains("--entry-cidr"),
        "{refused}"
    );
    let networks = "--entry-cidr 10.72.0.1 --exit-cidr 10.20.0.0/16 --exit-cidr fd00::/64";
    let config = config(&format!("{entry} {networks} --device tun7 --mtu 9000"));
    config.check().unwrap();
    let network = config.network.unwrap();
    assert_eq!((network.exit_cidrs.len(), network.mtu), (2, 9000));
    assert_eq!((network.device.as_str(), network.offloads), ("tun7", true));
    let words = ["muxgate"].into_iter().chain(entry.split(' '));
    let one_side = words.chain(["--entry-cidr", "10.72.0.1"]);
    assert!(Cli::try_parse_from(one_side).is_err());
}

#[test]
fn what_is_no_number_of_carriers_is_refused() {
    for text in ["", "many", "1..", "..4", "1-4", "999"] {
        assert!(parse_pool(text).is_err(), "{text:?}");
    }
}

#[test]
fn the_command_line_is_well_formed() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}
