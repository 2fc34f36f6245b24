#[path = "../../../tests/common/spellings.rs"]
mod spellings;

use super::*;
use crate::net::rules::{rule, rules};

const EXIT: &str =
    "role: Exit\nsecurity: {mode: None}\nlisten: 0.0.0.0:64000\nadmin: '[::]:64001'\n";

/// The rules of a test. The API server is 10.96.0.1, and this host is 192.0.2.99.
struct Rules {
    in_force: Reloadable,
    protected: ProtectedAddresses,
}

impl Rules {
    /// `policy` is the YAML of the fields with rules.
    fn new(policy: &str) -> Self {
        Self::beside(policy, "10.96.0.1")
    }

    fn allowing(allow: &[&str]) -> Self {
        Self::new(&format!("allow: [{}]", rules(allow)))
    }

    fn beside(policy: &str, api_server: &str) -> Self {
        Self::of(&format!("{EXIT}{policy}\n"), api_server)
    }

    fn of(text: &str, api_server: &str) -> Self {
        let config = muxtunnel_gateway_config::Config::from_yaml(text).unwrap();
        let is_local = |address: IpAddr| address == IpAddr::V4(Ipv4Addr::new(192, 0, 2, 99));
        Self {
            protected: ProtectedAddresses::new(api_server, &config, is_local),
            in_force: config.reloadable(),
        }
    }

    fn authorizer<'a>(&'a self, peer: Option<&'a str>) -> Authorizer<'a> {
        Authorizer::of_exit(&self.in_force, &self.protected, peer)
    }

    fn permit(&self, host: &str, address: &str, port: u16) -> bool {
        self.permit_to(None, host, address, port)
    }

    fn permit_to(&self, peer: Option<&str>, host: &str, address: &str, port: u16) -> bool {
        let (authorizer, host) = (self.authorizer(peer), Host::read(host).unwrap());
        let permitted = authorizer.permits(host, address.parse().unwrap(), port);
        assert!(!permitted || authorizer.may_permit(host, port));
        permitted
    }
}

fn permitted(allow: &[&str], host: &str, address: &str, port: u16) -> bool {
    Rules::allowing(allow).permit(host, address, port)
}

#[test]
fn nothing_is_permitted_by_default() {
    assert!(!permitted(&[], "web", "192.0.2.1", 80));
}

#[test]
fn a_name_permits_what_it_resolves_to_on_its_ports_only() {
    assert!(permitted(&["web.shop:80"], "WEB.shop.", "192.0.2.1", 80));
    assert!(!permitted(&["web.shop:80"], "web.shop", "192.0.2.1", 81));
    assert!(!permitted(&["web.shop:80"], "db.shop", "192.0.2.1", 80));
    assert!(permitted(&["web.shop"], "web.shop", "192.0.2.1", 81));
    for (port, expected) in [(7999, false), (8000, true), (8100, true), (8101, false)] {
        let got = permitted(&["web.shop:8000-8100"], "web.shop", "192.0.2.1", port);
        assert_eq!(got, expected, "{port}");
    }
}

#[test]
fn a_pattern_permits_names_below_its_domain_and_no_others() {
    for (host, expected) in [
        ("a.example.com", true),
        ("a.b.EXAMPLE.com.", true),
        ("example.com", false),
        (".example.com", false),
        ("badexample.com", false),
        ("a.example.com.evil.org", false),
        ("192.0.2.1", false),
    ] {
        let got = permitted(&["*.example.com"], host, "192.0.2.1", 80);
        assert_eq!(got, expected, "{host}");
    }
    assert!(permitted(&["*"], "a.b", "192.0.2.1", 80));
    assert!(permitted(&["*:80"], "192.0.2.1", "192.0.2.1", 80));
}

#[test]
fn a_network_permits_the_resolved_address_whatever_the_name() {
    assert!(permitted(&["10.0.0.0/8:80"], "any.name", "10.1.2.3", 80));
    assert!(!permitted(&["10.0.0.0/8:80"], "any.name", "11.1.2.3", 80));
    assert!(permitted(
        &["10.0.0.0/8"],
        "any.name",
        "::ffff:10.1.2.3",
        80
    ));
    assert!(permitted(
        &["10.0.0.0/8"],
        "any.name",
        "64:ff9b::10.1.2.3",
        80
    ));
}

#[test]
fn who_has_an_allowed_address_in_another_one_is_elsewhere() {
    for address in [
        "2002:a01:203::1",
        "2001:db8::5efe:10.1.2.3",
        "::10.1.2.3",
        "::ffff:0:10.1.2.3",
    ] {
        assert!(!permitted(&["10.0.0.0/8"], "x", address, 80), "{address}");
    }
}

#[test]
fn what_denies_wins_in_every_spelling() {
    let rules = Rules::new(
        "allow: [{host: '*'}, {cidr: 10.0.0.0/8}, {cidr: '::/0'}]\ndeny: [{cidr: 10.6.0.0/16}, {host: '*.corp.example'}, {host: db.example, port: 5432}, {host: '*', port: 25}]",
    );
    for (host, address, port, expected) in [
        ("a.example", "10.5.1.1", 80, true),
        ("a.example", "10.6.1.1", 80, false),
        ("10.6.1.1", "10.6.1.1", 80, false),
        ("a.example", "::ffff:10.6.1.1", 80, false),
        ("a.example", "64:ff9b::a06:101", 80, false),
        ("a.example", "2002:a06:101::1", 80, false),
        ("a.example", "2001:db8::5efe:10.6.1.1", 80, false),
        ("a.example", "2001:0:102:304::f5f9:fefe", 80, false),
        ("db.corp.example", "10.5.1.1", 80, false),
        ("corp.example", "10.5.1.1", 80, true),
        ("db.example", "10.5.1.1", 5432, false),
        ("db.example", "10.5.1.1", 5433, true),
        ("a.example", "10.5.1.1", 25, false),
    ] {
        let got = rules.permit(host, address, port);
        assert_eq!(got, expected, "{host} {address} {port}");
    }
    let db = Host::Name("db.example");
    assert!(
        !rules.authorizer(None).may_permit(db, 5432),
        "the name is not resolved"
    );
}

#[test]
fn a_rule_for_a_peer_is_for_nobody_else() {
    let rules = Rules::new(
        "allow: [{host: a, port: 80, peer: x}, {host: b, port: 80}]\ndeny: [{host: b, peer: x}]",
    );
    for (peer, host, expected) in [
        (None, "a", false),
        (Some("x"), "a", true),
        (Some("X"), "a", false),
        (Some("xx"), "a", false),
        (None, "b", true),
        (Some("x"), "b", false),
        (Some("y"), "b", true),
    ] {
        let got = rules.permit_to(peer, host, "192.0.2.1", 80);
        assert_eq!(got, expected, "{peer:?} {host}");
    }
}

#[test]
fn the_documented_table_is_what_is_judged() {
    let page = include_str!("../../../../docs/gateway.md");
    let (_, rest) = page
        .split_once("| `allow` | `deny` | requested | its address | result |\n")
        .unwrap();
    let (table, _) = rest.split_once("\n\n").unwrap();
    let rows = table.lines().skip(1);
    assert!(rows.clone().count() > 20);
    for row in rows {
        let cells: Vec<_> = row
            .trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().trim_matches('`'))
            .collect();
        let [allow, deny, target, address, verdict] = cells[..] else {
            panic!("{row}");
        };
        let deny = Some(deny).filter(|deny| !deny.is_empty());
        let deny = deny.map(rule).unwrap_or_default();
        let rules = Rules::new(&format!("allow: [{}]\ndeny: [{deny}]", rule(allow)));
        let (host, port) = target.rsplit_once(':').unwrap();
        let permitted =
            Host::read(host).is_some() && rules.permit(host, address, port.parse().unwrap());
        let expected = match verdict {
            "dialled" => true,
            "refused" => false,
            _ => panic!("{row}"),
        };
        assert_eq!(permitted, expected, "{row}");
    }
}

/// Wide rules, and a rule for a name that anyone may own.
const WIDE: [&str; 10] = [
    "*",
    "0.0.0.0/0",
    "::/0",
    "sneaky.example.com",
    "*.example.com",
    "126.0.0.0/7",
    "168.0.0.0/6",
    "10.96.0.0/12",
    "fe00::/7",
    "2000::/3",
];

#[test]
fn guarded_addresses_need_a_literal_rule_in_every_spelling() {
    let spellings = spellings::addresses();
    assert!(spellings.len() >= 200, "{}", spellings.len());
    for wide in WIDE {
        let rules = Rules::new(&format!(
            "allow: [{wide_rule}]\nprotectedCIDRs: [10.97.0.0/16, 'fd77::/64']",
            wide_rule = rule(wide)
        ));
        for address in &spellings {
            for host in ["sneaky.example.com", address] {
                assert!(
                    !rules.permit(host, address, 80),
                    "{wide} permits {host} at {address}"
                );
            }
        }
    }
}

/// The address 169.254.169.254 in a prefix of each length (RFC 6052, section 2.2).
const TRANSLATED: [(&str, &str); 6] = [
    ("2001:db8::/32", "2001:db8:a9fe:a9fe::"),
    ("2001:db8:100::/40", "2001:db8:1a9:fea9:fe::"),
    ("2001:db8:122::/48", "2001:db8:122:a9fe:a9:fe00::"),
    ("2001:db8:122:300::/56", "2001:db8:122:3a9:fe:a9fe::"),
    ("2001:db8:122:344::/64", "2001:db8:122:344:a9:fea9:fe00::"),
    ("2001:db8:122:344::/96", "2001:db8:122:344::a9fe:a9fe"),
];

#[test]
fn behind_a_prefix_of_the_networks_translator_an_address_is_guarded_as_the_one_in_it() {
    for (prefix, address) in TRANSLATED {
        for allow in ["*", "::/0", "2001:db8::/32", "sneaky.example.com"] {
            let rules = Rules::new(&format!(
                "allow: [{allow_rule}]\nnat64Prefixes: ['{prefix}']",
                allow_rule = rule(allow)
            ));
            let host = "sneaky.example.com";
            assert!(
                !rules.permit(host, address, 80),
                "{allow} {prefix} {address}"
            );
            assert!(
                !rules.permit(address, address, 80),
                "{allow} {prefix} {address}"
            );
            // Without the prefix, the exit cannot recognize the address as a metadata service.
            let rules = Rules::new(&format!("allow: [{allow_rule}]", allow_rule = rule(allow)));
            assert!(rules.permit(host, address, 80), "{allow} {address}");
        }
        let literal = Rules::new(&format!(
            "allow: [{address_rule}]\nnat64Prefixes: ['{prefix}']",
            address_rule = rule(address)
        ));
        assert!(literal.permit(address, address, 80), "{address}");
    }
    let prefix = "nat64Prefixes: ['2001:db8:122:344::/96']";
    let denied = Rules::new(&format!(
        "allow: [{{host: '*'}}]\ndeny: [{{cidr: 10.1.0.0/16}}]\n{prefix}"
    ));
    assert!(!denied.permit("a.example.com", "2001:db8:122:344::a01:203", 80));
    assert!(denied.permit("a.example.com", "2001:db8:122:344::a02:203", 80));
    assert!(denied.permit("a.example.com", "2001:db8:122:345::a01:203", 80));
}

#[test]
fn numbers_that_resolvers_read_as_addresses_are_neither_names_nor_addresses() {
    let numbers = spellings::numbers();
    assert!(numbers.len() >= 190, "{}", numbers.len());
    for text in numbers {
        assert_eq!(Host::read(&text), None, "{text}");
    }
    for text in [
        "127.1",
        "0177.1",
        "0x7f.1",
        "1.0x",
        "a.1",
        "a b",
        "a%00.example",
        "fe80::1%lo",
        "[::1]",
        "１２７.0.0.1",
        "127。0。0。1",
        "",
    ] {
        assert_eq!(Host::read(text), None, "{text:?}");
    }
    for name in ["a", "a.b", "x0x7f", "1a", "0xg", "a.0xyz", "_x._tcp.a-b"] {
        assert_eq!(Host::read(name), Some(Host::Name(name)));
    }
}

#[test]
fn a_literal_rule_permits_a_guarded_address() {
    for (allow, host, address) in [
        ("127.0.0.1:5001", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.0/8", "x", "127.3.2.1"),
        ("127.0.0.0/8", "x", "::ffff:127.3.2.1"),
        ("localhost:5001", "localhost", "::1"),
        ("localhost:5001", "LOCALHOST.", "127.0.0.1"),
        ("[::1]:5001", "localhost", "::1"),
        ("169.254.0.0/16", "x", "169.254.1.1"),
        ("100.100.100.200", "x", "100.100.100.200"),
        ("224.0.0.0/4", "x", "239.0.0.1"),
        ("2002:7f00::/24", "x", "2002:7f00:1::1"),
        ("64:ff9b::7f00:0/104", "x", "64:ff9b::7f00:1"),
        ("64:ff9b:1::/48", "x", "64:ff9b:1::a00:1"),
        ("2001:0:7f00:1::/64", "x", "2001:0:7f00:1::f5ff:fffe"),
        ("10.96.0.1", "x", "10.96.0.1"),
        ("10.96.0.1:5001", "x", "::ffff:10.96.0.1"),
        (
            "kubernetes.default.svc",
            "kubernetes.default.svc",
            "10.96.0.1",
        ),
    ] {
        assert!(
            permitted(&[allow], host, address, 5001),
            "{allow} {address}"
        );
    }
    for (allow, host, address) in [
        ("localhost:22", "localhost", "169.254.169.254"),
        ("*.localhost", "a.localhost", "127.0.0.1"),
        (
            "kubernetes.default.svc",
            "kubernetes.default.svc",
            "127.0.0.1",
        ),
        ("kubernetes.default.svc", "x", "10.96.0.1"),
        ("*.default.svc", "kubernetes.default.svc", "10.96.0.1"),
        ("10.96.0.0/31", "x", "10.96.0.1"),
        ("2001:0:7f00:1::/64", "x", "2001:0:7f00:1::5601:5601"),
        ("127.0.0.0/7", "x", "127.0.0.1"),
    ] {
        assert!(!permitted(&[allow], host, address, 22), "{allow} {address}");
    }
}

#[test]
fn what_is_protected_is_reached_only_from_within() {
    let allowing = |allow: &str| {
        Rules::new(&format!(
            "allow: [{allow_rule}]\nprotectedCIDRs: [10.97.0.0/16, 'fd77::/64']",
            allow_rule = rule(allow)
        ))
    };
    for (allow, address, expected) in [
        ("10.97.0.0/16", "10.97.1.1", true),
        ("10.97.1.0/24", "10.97.1.1", true),
        ("10.96.0.0/15", "10.97.1.1", false),
        ("10.96.0.0/15", "10.96.1.1", true),
        ("fd77::1", "fd77::1", true),
        ("fd77::/63", "fd77::1", false),
        ("::/0", "2002:a61:101::", false),
    ] {
        let got = allowing(allow).permit("x.example", address, 80);
        assert_eq!(got, expected, "{allow} {address}");
    }
}

#[test]
fn an_api_server_that_is_known_by_name_is_reached_by_its_name() {
    let rules = |allow: &str| {
        Rules::beside(
            &format!("allow: [{allow_rule}]", allow_rule = rule(allow)),
            "api.example.com",
        )
    };
    for (allow, expected) in [
        ("api.example.com:443", true),
        ("*.example.com", false),
        ("192.0.2.0/24", false),
        ("*", false),
    ] {
        let got = rules(allow).permit("API.example.com.", "192.0.2.1", 443);
        assert_eq!(got, expected, "{allow}");
    }
}

#[test]
fn the_gateways_own_ports_need_their_address_and_their_port() {
    for (allow, host, address, port, expected) in [
        ("192.0.2.0/24", "x", "192.0.2.99", 64000, false),
        ("192.0.2.99", "x", "192.0.2.99", 64001, false),
        ("192.0.2.99:1-65535", "x", "192.0.2.99", 64001, false),
        ("192.0.2.99:64001", "x", "192.0.2.99", 64001, true),
        ("::/0", "x", "2002:c000:263::", 64001, false),
        (
            "own.example:64001",
            "own.example",
            "192.0.2.99",
            64001,
            false,
        ),
        ("192.0.2.0/24", "x", "192.0.2.99", 64002, true),
        ("192.0.2.0/24", "x", "192.0.2.98", 64001, true),
    ] {
        let got = permitted(&[allow], host, address, port);
        assert_eq!(got, expected, "{allow} {address}:{port}");
    }
}

/// An exit with two peers. `peer` has the YAML of the first peer's rules.
fn with_peer(policy: &str, peer: &str) -> (Rules, String) {
    use muxtunnel_gateway_config::{Role, key_text};
    let [one, two] = [7, 8].map(|byte| key_text(Role::Entry, &[byte; 32]));
    let text = format!(
        "role: Exit\nlisten: 0.0.0.0:64000\nadmin: '[::]:64001'\n{policy}\nsecurity: {{mode: PublicKeys, \
         privateKeyFiles: [/k], peers: [{{name: site, publicKeys: [{one}], {peer}}}, {two}]}}\n"
    );
    (Rules::of(&text, "10.96.0.1"), two)
}

#[test]
fn a_peer_reaches_what_the_exit_and_its_own_rules_allow_and_neither_denies() {
    let policy = "allow: [{host: '*.internal', port: 80}, {cidr: 10.0.0.0/8}, {cidr: 127.0.0.1/32}, {unix: /a}, {unix: /b}]\ndeny: [{cidr: 10.6.0.0/16}]";
    let (rules, other) = with_peer(
        policy,
        "allow: [{host: web.internal}, {cidr: 10.1.0.0/16, port: 80, endPort: 90}, {cidr: 10.6.0.0/16}, {cidr: 127.0.0.0/8}, {cidr: 192.0.2.0/24}, {host: '*', port: 22}, {unix: /a}], \
         deny: [{cidr: 10.1.2.3/32, port: 81}, {host: bad.internal}, {cidr: 10.1.9.0/24}, {cidr: 10.1.7.7/32}]",
    );
    for (host, address, port, site, others) in [
        ("web.internal", "192.0.2.1", 80, true, true),
        ("WEB.internal.", "192.0.2.1", 80, true, true),
        ("web.internal", "192.0.2.1", 81, false, false),
        ("db.internal", "198.51.100.1", 80, false, true),
        // A rule with a network matches the address to which a name resolves.
        ("db.internal", "192.0.2.1", 80, true, true),
        ("10.1.2.3", "10.1.2.3", 80, true, true),
        ("10.1.2.3", "::ffff:10.1.2.3", 80, true, true),
        ("10.1.2.3", "10.1.2.3", 91, false, true),
        ("10.1.2.3", "10.1.2.3", 81, false, true),
        ("10.2.0.1", "10.2.0.1", 80, false, true),
        ("10.2.0.1", "10.2.0.1", 22, true, true),
        ("x.example", "10.1.9.1", 80, false, true),
        // The address contains a denied IPv4 address.
        ("x.internal", "2002:a01:909::1", 80, false, true),
        ("bad.internal", "10.1.0.1", 80, false, true),
        // Another name of a denied address is no way around the rule.
        ("web.internal", "10.1.7.7", 80, false, true),
        // The rules of a peer permit nothing that the exit does not.
        ("10.6.0.1", "10.6.0.1", 80, false, false),
        ("192.0.2.1", "192.0.2.1", 80, false, false),
        ("web.internal", "10.96.0.1", 80, false, false),
        ("127.0.0.1", "127.0.0.1", 80, true, true),
        ("127.0.0.2", "127.0.0.2", 80, false, false),
    ] {
        for (peer, expected) in [("site", site), (&*other, others)] {
            let got = rules.permit_to(Some(peer), host, address, port);
            assert_eq!(got, expected, "{peer} {host} {address} {port}");
        }
        // The list does not have these peers any more. Users of SSH are in another list.
        assert!(!rules.permit_to(Some("gone"), host, address, port));
        let of_ssh = rules.permit_to(Some("ssh:SHA256:x"), host, address, port);
        assert_eq!(of_ssh, others, "{host} {address} {port}");
    }
    let site = rules.authorizer(Some("site"));
    assert!(site.permits_unix("/a") && !site.permits_unix("/b"));
    assert!(rules.authorizer(Some(&other)).permits_unix("/b"));
    assert!(!rules.authorizer(Some("gone")).permits_unix("/a"));
    // No name is resolved that the peer's rules cannot permit.
    let (rules, other) = with_peer(
        "allow: [{host: '*'}]",
        "allow: [{host: web.internal}, {host: web.whole., port: 80}]",
    );
    let site = rules.authorizer(Some("site"));
    assert!(!site.may_permit(Host::Name("db.internal"), 80));
    assert!(
        rules
            .authorizer(Some(&other))
            .may_permit(Host::Name("db.internal"), 80)
    );
    assert!(site.is_whole(Host::Name("web.whole"), 80));
    assert!(!site.is_whole(Host::Name("web.internal"), 80));
}
