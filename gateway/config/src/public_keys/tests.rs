use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};

use super::*;
use crate::{
    ExpirationTime, PEER_RULES_MAX, PEERS_MAX, PeerLimits, PeerRules, Rule, key_text, parse_peers,
    readable_peers,
};

fn text(role: Role, seed: u8) -> String {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap();
    key_text(role, pair.public_key().as_ref().try_into().unwrap())
}

fn entry(seed: u8) -> String {
    text(Role::Entry, seed)
}

fn exit(peers: &str, more: &str) -> Result<Config, String> {
    Config::from_yaml(&format!(
        "role: Exit\nlisten: 0.0.0.0:64000\nsecurity: {{mode: PublicKeys, privateKeyFiles: [/k], {peers}}}\n{more}"
    ))
    .map_err(|error| error.to_string())
}

#[test]
fn a_peer_is_a_key_or_has_fields() {
    let yaml = format!(
        "peersFile: /p, peers: [{}, {{name: site, publicKeys: [{}, {}], suspend: true, \
         expirationTime: '2027-01-31T20:00:00+02:00'}}]",
        entry(1),
        entry(2),
        entry(3)
    );
    let config = exit(&yaml, "").unwrap();
    let Security::PublicKeys(keys) = &config.security else {
        panic!("not public keys");
    };
    assert_eq!(
        keys.peers[0].identity(&keys.peers[0].public_keys[0]),
        entry(1)
    );
    assert_eq!(
        keys.peers[1].identity(&keys.peers[1].public_keys[1]),
        "site"
    );
    assert_eq!(config.security.files(), [Path::new("/k"), Path::new("/p")]);
    let written = config.to_yaml().unwrap();
    assert!(written.contains("2027-01-31T18:00:00Z"), "{written}");
    assert_eq!(Config::from_yaml(&written).unwrap(), config);
}

#[test]
fn a_peer_is_refused_from_its_time_on_and_while_it_is_suspended() {
    let time = "2027-01-31T18:00:00Z".parse::<ExpirationTime>().unwrap();
    let seconds = 1_801_418_400;
    let mut peer = Peer::with_key(entry(1).parse().unwrap());
    assert_eq!(peer.refused_at(u64::MAX / 2), None);
    peer.expiration_time = Some(time);
    assert_eq!(peer.refused_at(seconds - 1), None);
    let refused = peer.refused_at(seconds).unwrap();
    assert_eq!(refused, "has expired at 2027-01-31T18:00:00Z");
    peer.suspend = true;
    assert_eq!(peer.refused_at(0).unwrap(), "is suspended");
}

#[test]
fn what_is_no_peer_is_named_with_its_field() {
    let (one, two) = (entry(1), entry(2));
    let far = text(Role::Exit, 3);
    let broken = format!("{}q", &one[..62]);
    let keys: Vec<_> = (1..=5).map(entry).collect();
    let many: Vec<_> = (0..=PEERS_MAX).map(|_| one.clone()).collect();
    for (peers, expected) in [
        (
            format!("peers: [{far}]"),
            "security.peers[0].publicKeys[0]: the key of an exit (mtx1...), but an entry",
        ),
        (format!("peers: [{broken}]"), "the checksum is wrong"),
        (
            format!("peers: [{{publicKeys: [{broken}]}}]"),
            "security.peers[0].publicKeys[0]: the checksum is wrong",
        ),
        (
            format!("peers: [{one}, {two}, {one}]"),
            "security.peers[2].publicKeys[0]: ",
        ),
        (
            format!("peers: [{{name: a, publicKeys: [{one}, {one}]}}]"),
            "security.peers[0].publicKeys[1]: ",
        ),
        (
            format!("peers: [{{publicKeys: [{one}, {two}]}}]"),
            "security.peers[0].name: is missing",
        ),
        (
            "peers: [{name: a, publicKeys: []}]".to_owned(),
            "has 0 keys",
        ),
        (
            format!("peers: [{{name: a, publicKeys: [{}]}}]", keys.join(", ")),
            "has 5 keys",
        ),
        (
            format!("peers: [{{name: a, publicKeys: [{one}]}}, {{name: a, publicKeys: [{two}]}}]"),
            "security.peers[1].name: ",
        ),
        (
            format!("peers: [{{name: A, publicKeys: [{one}]}}]"),
            "is not a name",
        ),
        (
            format!("peers: [{{name: mte1x, publicKeys: [{one}]}}]"),
            "begins like a key",
        ),
        (
            format!("peers: [{{publicKeys: [{one}], expirationTime: tomorrow}}]"),
            "expirationTime",
        ),
        (format!("peers: [{}]", many.join(", ")), "is listed twice"),
        (
            "peers: [], key: /x".to_owned(),
            "`key` is not a field of mode PublicKeys",
        ),
    ] {
        let error = exit(&peers, "").unwrap_err();
        assert!(error.contains(expected), "{peers}: {error}");
    }
    assert!(exit("peers: []", "").is_ok());
}

#[test]
fn an_entry_needs_an_exit() {
    let entry = |keys: &str, peers: &str| {
        let text = format!(
            "role: Entry\nconnect:\n- name: far\n  address: far:1\n{keys}security: {{mode: PublicKeys, privateKeyFiles: [/k]{peers}}}\n"
        );
        Config::from_yaml(&text).map_err(|error| error.to_string())
    };
    let none = entry("", "").unwrap_err();
    assert!(none.contains("connect[0].publicKeys: has 0 keys"), "{none}");
    let key = text(Role::Exit, 1);
    let with = |keys: &str| format!("  publicKeys: [{keys}]\n");
    assert!(entry(&with(&key), "").is_ok());
    let own_role = entry(&with(&text(Role::Entry, 1)), "").unwrap_err();
    assert!(
        own_role.contains("connect[0].publicKeys[0]: the key of an entry"),
        "{own_role}"
    );
    let twice = entry(&with(&format!("{key}, {key}")), "").unwrap_err();
    assert!(twice.contains("connect[0].publicKeys[1]: "), "{twice}");
    for (peers, field) in [
        (
            format!(", peers: [{key}]"),
            "security.peers: is only for an exit",
        ),
        (
            ", peersFile: /p".to_owned(),
            "connect[0].publicKeys: does not belong",
        ),
    ] {
        let error = entry(&with(&key), &peers).unwrap_err();
        assert!(error.contains(field), "{error}");
    }
    // The file has the keys of the exits.
    assert!(entry("", ", peersFile: /p").is_ok());
    // Two exits may be addresses of one gateway.
    let second = format!("{0}- name: near\n  address: near:1\n{0}", with(&key));
    let config = entry(&second, "").unwrap();
    let peers: Vec<_> = match config.trusted() {
        Security::PublicKeys(keys) => keys.peers,
        other => panic!("{other:?}"),
    };
    let names: Vec<_> = peers
        .iter()
        .filter_map(|peer| peer.name.as_deref())
        .collect();
    assert_eq!(names, ["far", "near"]);
}

#[test]
fn a_gateway_does_not_accept_its_own_key() {
    let key: GatewayKey = entry(1).parse().unwrap();
    let peers = [
        Peer::with_key(entry(2).parse().unwrap()),
        Peer::with_key(key),
    ];
    assert_eq!(check_peers(&peers, PeerList::Entries, &[]), Ok(()));
    let problem = check_peers(&peers, PeerList::Entries, &[*key.bytes()]).unwrap_err();
    assert_eq!((problem.index, &*problem.field), (1, "publicKeys[0]"));
    assert!(problem.problem.contains("own key"), "{}", problem.problem);
}

#[test]
fn a_rule_names_a_peer_by_its_name_if_it_has_one() {
    let named = format!("peers: [{{name: a, publicKeys: [{}]}}]", entry(1));
    for (field, more) in [
        (
            "allow[0]",
            format!("allow: [{{host: web, port: 80, peer: {}}}]\n", entry(1)),
        ),
        (
            "deny[0]",
            format!("deny: [{{host: '*', peer: {}}}]\n", entry(1)),
        ),
        (
            "allowListen[0]",
            format!("allowListen: ['80,peer={}']\n", entry(1)),
        ),
    ] {
        let error = exit(&named, &more).unwrap_err();
        assert!(error.contains(field) && error.contains("peer=a"), "{error}");
        assert!(exit(&format!("peers: [{}]", entry(1)), &more).is_ok());
        let by_name = more.replace(&entry(1), "a");
        assert!(exit(&named, &by_name).is_ok());
    }
}

#[test]
fn a_rule_names_no_key_that_is_no_identity() {
    let file = format!("peersFile: /p, peers: [{}]", entry(1));
    let rule = |peer: &str| format!("deny: [{{host: '*', peer: {peer}}}]\n");
    assert!(exit(&file, &rule(&entry(1))).is_ok());
    assert!(exit(&file, &rule("laptop")).is_ok());
    // The file may give this key a name.
    let error = exit(&file, &rule(&entry(2))).unwrap_err();
    assert!(
        error.contains("deny[0]: names a peer by its key"),
        "{error}"
    );
    let inline = format!("peers: [{}]", entry(1));
    assert!(exit(&inline, &rule(&entry(2))).is_ok());
    for (peer, problem) in [
        (text(Role::Exit, 1), "the key of an exit"),
        (
            entry(1).replacen("mte1q", "mte1p", 1),
            "the checksum is wrong",
        ),
    ] {
        let error = exit(&inline, &rule(&peer)).unwrap_err();
        assert!(
            error.contains("deny[0]") && error.contains(problem),
            "{error}"
        );
    }
}

#[test]
fn an_exit_has_rules_for_each_of_its_peers() {
    let rules = |rules: &str, more: &str| {
        let peer = format!("name: a, publicKeys: [{}, {}], {rules}", entry(1), entry(2));
        exit(
            &format!(
                "peers: [{{{peer}}}, {{publicKeys: [{}], deny: [{{host: '*', port: 25}}]}}]{more}",
                entry(3)
            ),
            "",
        )
    };
    let config = rules(
        "allow: [{host: web, port: 80}], deny: [{cidr: 10.0.0.0/8}]",
        "",
    )
    .unwrap();
    let written = config.to_yaml().unwrap();
    assert_eq!(Config::from_yaml(&written).unwrap(), config);
    let of = |identity: &str| config.security.rules_of(Some(identity));
    let shown = |rules: &[Rule]| rules.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(shown(of("a").allow.unwrap()), ["web:80"]);
    assert_eq!(shown(of("a").deny), ["10.0.0.0/8"]);
    assert_eq!(
        (of(&entry(3)).allow, &*shown(of(&entry(3)).deny)),
        (None, &["*:25".to_owned()][..])
    );
    // The key of a peer with a name is no identity.
    for identity in [&*entry(1), "b", ""] {
        assert_eq!(
            of(identity),
            PeerRules {
                allow: Some(&[]),
                deny: &[]
            }
        );
    }
    assert_eq!(of("ssh:SHA256:x"), PeerRules::default());
    assert_eq!(config.security.rules_of(None), PeerRules::default());
    // Further peers are in the file, without rules.
    let config = rules("allow: [{host: web, port: 80}]", ", peersFile: /p").unwrap();
    assert_eq!(config.security.rules_of(Some("b")), PeerRules::default());
    assert!(config.security.rules_of(Some("a")).allow.is_some());
    let many = vec!["{host: a}"; PEER_RULES_MAX + 1].join(", ");
    for (wrong, problem) in [
        (
            format!("allow: [{many}]"),
            "security.peers[0].allow: has 33 entries, at most 32",
        ),
        (
            format!("deny: [{many}]"),
            "security.peers[0].deny: has 33 entries, at most 32",
        ),
        (
            "deny: [{host: a, port: 1, peer: b}]".to_owned(),
            "security.peers[0].deny: a:1,peer=b has peer=",
        ),
        (
            "allow: [{host: a, port: 0}]".to_owned(),
            "a port must be from 1 to 65535",
        ),
    ] {
        let error = rules(&wrong, "").unwrap_err();
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn rules_of_peers_are_reloaded() {
    let with = |rules: &str| {
        exit(
            &format!("peers: [{{publicKeys: [{}], {rules}}}]", entry(1)),
            "",
        )
        .unwrap()
    };
    let (before, after) = (with("allow: [{host: a}]"), with("deny: [{host: a}]"));
    assert!(before.needing_restart(&after).is_empty());
    assert_eq!(before.reloaded(&after), after);
}

#[test]
fn a_time_without_a_text_is_no_time() {
    for text in [
        "9999-12-31T23:59:59-05:00",
        "0000-01-01T00:00:00+01:00",
        "now",
        "",
    ] {
        assert!(text.parse::<ExpirationTime>().is_err(), "{text}");
    }
    let last = "9999-12-31T23:59:59Z".parse::<ExpirationTime>().unwrap();
    assert_eq!(last.to_string(), "9999-12-31T23:59:59Z");
    let null = format!(
        "peers: [{{publicKeys: [{}], expirationTime: null}}]",
        entry(1)
    );
    assert!(exit(&null, "").is_err());
}

#[test]
fn lines_that_can_be_read_are_peers() {
    let text = format!("{} a\nmte1\n{}\n", entry(1), entry(2));
    assert!(parse_peers(&text).is_err());
    let peers = readable_peers(&text);
    assert_eq!(peers.len(), 2);
    let secret = "MC4CAQAwBQYDK2VwBCIEIJ0Lk3AqPzRr0yXz1Wk9b3o5=";
    for line in [secret.to_owned(), format!("{} {secret}", entry(1))] {
        let error = parse_peers(&line).map(|peers| {
            let peers: Vec<_> = peers.into_iter().map(|(_, peer)| peer).collect();
            check_peers(&peers, PeerList::Entries, &[])
                .unwrap_err()
                .problem
        });
        let error = error.unwrap_or_else(|error| error);
        assert!(!error.contains("MC4CAQ"), "{error}");
    }
}

#[test]
fn lines_of_one_name_are_one_peer() {
    let line = |seed, name: &str| format!("{} {name}\n", entry(seed));
    let text = [
        line(1, "a"),
        line(2, "b"),
        line(3, "a"),
        line(4, ""),
        line(5, ""),
    ]
    .concat();
    let peers = parse_peers(&text).unwrap();
    let shown: Vec<_> = peers
        .iter()
        .map(|(number, peer)| (*number, peer.name.as_deref(), peer.public_keys.len()))
        .collect();
    let expected = [
        (1, Some("a"), 2),
        (2, Some("b"), 1),
        (4, None, 1),
        (5, None, 1),
    ];
    assert_eq!(shown, expected);
    assert_eq!(peers[0].1.public_keys[1].to_string(), entry(3));
    let peers: Vec<_> = peers.into_iter().map(|(_, peer)| peer).collect();
    assert_eq!(check_peers(&peers, PeerList::Entries, &[]), Ok(()));
    assert_eq!(readable_peers(&text), peers);
    let many: String = (1..=5).map(|seed| line(seed, "a")).collect();
    let error = parse_peers(&many).unwrap_err();
    assert_eq!(error, "line 5: the peer a has more than 4 keys");
    assert_eq!(readable_peers(&many)[0].public_keys.len(), 4);
    let option = "expirationTime=\"2027-01-31T18:00:00Z\"";
    let differs = format!("{}{option} {}", line(1, "a"), line(2, "a"));
    let error = parse_peers(&differs).unwrap_err();
    assert!(
        error.starts_with("line 2: the option expirationTime differs from that of line 1"),
        "{error}"
    );
    let same = format!("{option} {}{option} {}", line(1, "a"), line(2, "a"));
    assert_eq!(parse_peers(&same).unwrap().len(), 1);
}

#[test]
fn a_gateway_has_one_or_two_keys() {
    let with = |files: &str| {
        let text = format!(
            "role: Exit\nlisten: 0.0.0.0:64000\nsecurity: {{mode: PublicKeys, privateKeyFiles: {files}, peers: []}}\n"
        );
        Config::from_yaml(&text).map_err(|error| error.to_string())
    };
    assert!(with("[/a]").is_ok() && with("[/a, /b]").is_ok());
    for (files, count) in [("[]", 0), ("[/a, /b, /c]", 3)] {
        let error = with(files).unwrap_err();
        let expected = format!("security.privateKeyFiles: has {count} files, but");
        assert!(error.contains(&expected), "{error}");
    }
    let missing = "role: Exit\nlisten: 0.0.0.0:64000\nsecurity: {mode: PublicKeys, peers: []}\n";
    let error = Config::from_yaml(missing).unwrap_err().to_string();
    assert!(error.contains("missing field `privateKeyFiles`"), "{error}");
}

#[test]
fn a_file_of_peers_has_a_peer_on_each_line() {
    let text = format!(
        "# sites\n\n{} laptop\n  expirationTime=\"2027-01-31T18:00:00Z\" {}\n",
        entry(1),
        entry(2)
    );
    let peers = parse_peers(&text).unwrap();
    assert_eq!(peers[0].1.name.as_deref(), Some("laptop"));
    assert_eq!(peers[1].1.name, None);
    assert!(peers[1].1.expiration_time.is_some() && peers.len() == 2);
    for (line, expected) in [
        (
            format!("{} a b", entry(1)),
            "line 2: the line has more words",
        ),
        (
            format!("permitopen=\"a\" {}", entry(1)),
            "line 2: the option permitopen is not known",
        ),
        (
            format!("expirationTime=now {}", entry(1)),
            "line 2: expirationTime: \"now\" is not a time",
        ),
        (
            "expirationTime=2027-01-31T18:00:00Z".to_owned(),
            "line 2: the key is missing",
        ),
        (
            "-----BEGIN PRIVATE KEY-----".to_owned(),
            "line 2: the key is not the public key",
        ),
    ] {
        let error = parse_peers(&format!("# one\n{line}\n")).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
    let many = format!("{}\n", entry(1)).repeat(PEERS_MAX + 1);
    assert!(parse_peers(&many).unwrap_err().contains("more than 256"));
}

#[test]
fn the_limits_of_a_peer_are_within_their_bounds_and_those_of_one_identity() {
    let with = |limits: &str| {
        let key = entry(1);
        Config::from_yaml(&format!(
            "role: Exit\nlisten: 0.0.0.0:64000\nsecurity: {{mode: PublicKeys, privateKeyFiles: [/k], peersFile: /p, \
             peers: [{{name: a, publicKeys: [{key}], limits: {{{limits}}}}}]}}\n"
        ))
    };
    let config = with("streams: 5, opensPerSecond: 2, bitsPerSecond: 1M, carriers: 64").unwrap();
    let written = config.to_yaml().unwrap();
    assert_eq!(Config::from_yaml(&written).unwrap(), config);
    let of = |identity: &str| config.security.limits_of(Some(identity));
    assert_eq!((of("a").streams, of("a").carriers), (Some(5), Some(64)));
    for other in [&*entry(1), "b", "ssh:SHA256:x"] {
        assert_eq!(of(other), PeerLimits::default(), "{other}");
    }
    for (limits, field) in [
        ("streams: 0", "streams: must be from 1 to 1000000"),
        ("opensPerSecond: 1000001", "opensPerSecond: must be from 1"),
        ("bitsPerSecond: 10k", "bitsPerSecond: 10k is out of range"),
        ("carriers: 257", "carriers: must be from 1 to 256"),
    ] {
        let error = with(limits).unwrap_err().to_string();
        let expected = format!("security.peers[0].limits.{field}");
        assert!(error.contains(&expected), "{error}");
    }
}
