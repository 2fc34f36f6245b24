//! Services of other namespaces: look-ups, refusals and messages.

use muxtunnel_operator::tunnel_controller::end::End;
use muxtunnel_operator::tunnel_controller::references::references;

use super::build::config;
use super::*;

const REFUSAL: &str = "forward web: namespace shops does not permit objects of kind MuxTunnel in namespace site to refer \
     to a Service shop: create a ReferenceGrant or MuxGrant there";

fn permitted() -> Dereferenced {
    let service: Service = serde_json::from_value(shop_json()).unwrap();
    Dereferenced {
        services: [(named("shops", "shop"), service)].into(),
        ..Dereferenced::default()
    }
}

pub(super) fn forbidden() -> Dereferenced {
    Dereferenced {
        forbidden: [named("shops", "shop")].into(),
        ..Dereferenced::default()
    }
}

pub(super) fn allowed(resources: &Resources) -> Vec<String> {
    let exit = config(resources, "office-tunnel-exit");
    exit.allow.iter().map(ToString::to_string).collect()
}

/// The number of forwards of the entry.
fn forwards(tunnel: &ValidatedObject) -> usize {
    let resources = build(tunnel, &settings()).unwrap();
    config(&resources, "office-entry").forwards.len()
}

#[test]
fn a_permitted_service_of_another_namespace_is_dialled_by_its_name_there() {
    let tunnel = valid_with(FAR, &permitted(), class());
    assert_eq!(tunnel.findings.all, []);
    let resources = build(&tunnel, &settings()).unwrap();
    assert_eq!(
        allowed(&resources),
        ["shop.shops.svc:80", "db.example.com.:5432"]
    );
}

#[test]
fn one_that_is_not_permitted_is_neither_listened_for_nor_dialled_while_the_others_are() {
    let tunnel = valid_with(FAR, &forbidden(), class());
    assert_eq!(not_permitted(&tunnel), [REFUSAL]);
    assert!(unresolved(&tunnel).is_empty());
    // The gateways' Service keeps the port of the forward, so that a later permission does not
    // change the port.
    let ports = tunnel.listen_ports(End::Entry);
    let ports: Vec<_> = ports.map(|listen| listen.port).collect();
    assert_eq!(ports, [8080, 443]);
    let resources = build(&tunnel, &settings()).unwrap();
    assert_eq!(allowed(&resources), ["db.example.com.:5432"]);
    // The exit denies the target, which ends open streams to the target.
    let exit = config(&resources, "office-tunnel-exit");
    let deny: Vec<_> = exit.deny.iter().map(ToString::to_string).collect();
    assert_eq!(deny, ["shop.shops.svc"]);
    let entry = config(&resources, "office-entry");
    assert_eq!(entry.forwards.len(), 1);
    assert!(entry.allow.is_empty() && entry.deny.is_empty());
}

#[test]
fn nor_is_the_services_name_as_an_address() {
    let by_name = FAR.replace(
        "[{serviceRef: {name: shop, namespace: shops}, port: 80}]",
        "[{host: Shop.shops.svc.cluster.local, port: 80}]",
    );
    let tunnel = valid_with(&by_name, &forbidden(), class());
    assert_eq!(not_permitted(&tunnel), [REFUSAL]);
    assert_eq!(forwards(&tunnel), 1);
    let tunnel = valid_with(&by_name, &permitted(), class());
    assert!(not_permitted(&tunnel).is_empty());
    assert_eq!(forwards(&tunnel), 2);
}

/// The other targets of a forward need no permission.
#[test]
fn a_forward_keeps_its_permitted_targets() {
    let spec = FAR.replace(
        "port: 80}]",
        "port: 80}, {host: web.example.com, port: 80}]",
    );
    let tunnel = valid_with(&spec, &forbidden(), class());
    assert_eq!(not_permitted(&tunnel), [REFUSAL]);
    let resources = build(&tunnel, &settings()).unwrap();
    assert_eq!(
        allowed(&resources),
        ["web.example.com.:80", "db.example.com.:5432"]
    );
    let entry = config(&resources, "office-entry");
    let targets = &entry.forwards[0].targets;
    assert_eq!(targets.len(), 1);
    assert_eq!(targets[0].to_string(), "web.example.com.:80");
}

#[test]
fn what_is_missing_of_a_permitted_service_is_said_with_its_namespace() {
    let tunnel = valid_with(FAR, &Dereferenced::default(), class());
    assert_eq!(
        unresolved(&tunnel),
        ["forward web: Service shop of namespace shops does not exist"]
    );
}

#[test]
fn gateways_that_dial_are_kept_from_the_api_server_wherever_it_listens() {
    let named = Dereferenced {
        api_server: vec!["172.18.0.2".parse().unwrap()],
        ..shop()
    };
    let resources = build(&valid_with(SMALLEST, &named, class()), &settings()).unwrap();
    let exit = config(&resources, "office-tunnel-exit");
    let protected: Vec<_> = exit
        .protected_cidrs
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(protected, ["172.18.0.2"]);
    assert!(
        config(&resources, "office-entry")
            .protected_cidrs
            .is_empty()
    );
    // An entry that dials for its exit needs the permission, too.
    let reverse = SMALLEST
        .replace("JMUX", "Native")
        .replace("- name: db\n", "reverseForwards:\n- name: db\n");
    let resources = build(&valid_with(&reverse, &named, class()), &settings()).unwrap();
    let entry = config(&resources, "office-entry");
    let protected: Vec<_> = entry
        .protected_cidrs
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(protected, ["172.18.0.2"]);
    assert!(entry.allow.is_empty() && entry.deny.is_empty());
}

#[test]
fn the_own_namespace_needs_no_permission_however_it_is_named() {
    let named_own = object(&FAR.replace("namespace: shops", "namespace: site"));
    let found = references(&named_own, "site");
    assert_eq!(found.services, [named("site", "shop")].into());
    assert!(found.foreign.is_empty());
    let found = references(&object(FAR), "site");
    assert_eq!(found.services, [named("shops", "shop")].into());
    assert_eq!(found.foreign, found.services);
}

/// A permission covers the ports of a Service, not all ports of its pods.
#[test]
fn a_port_that_a_service_does_not_have_leads_nowhere_however_it_is_named() {
    let says = "forward web: Service shop of namespace shops has no TCP port 9100";
    for target in [
        "[{serviceRef: {name: shop, namespace: shops}, port: 9100}]",
        "[{host: shop.shops.svc, port: 9100}]",
        "[{host: pod-0.shop.shops.svc.cluster.local, port: 9100}]",
    ] {
        let text = FAR.replace(
            "[{serviceRef: {name: shop, namespace: shops}, port: 80}]",
            target,
        );
        let tunnel = valid_with(&text, &permitted(), class());
        assert_eq!(unresolved(&tunnel), [says], "{target}");
        let resources = build(&tunnel, &settings()).unwrap();
        assert_eq!(allowed(&resources), ["db.example.com.:5432"], "{target}");
        // After the Service is deleted, the forward stays.
        let tunnel = valid_with(&text, &Dereferenced::default(), class());
        assert_eq!(forwards(&tunnel), 2, "{target}");
    }
}

#[test]
fn a_service_that_stands_for_another_name_is_no_target() {
    let mut service = shop_json();
    service["spec"]["type"] = json!("ExternalName");
    service["spec"]["externalName"] = json!("web.vaults.svc.cluster.local");
    let service: Service = serde_json::from_value(service).unwrap();
    for (target, namespace) in [
        ("[{serviceRef: {name: shop}, port: 80}]", "site"),
        ("[{serviceRef: {name: shop}, port: 80}]", "site"),
        (
            "[{serviceRef: {name: shop, namespace: shops}, port: 80}]",
            "shops",
        ),
        ("[{host: shop, port: 80}]", "site"),
        ("[{host: shop.site, port: 80}]", "site"),
        ("[{host: shop.site.svc.cluster.local, port: 80}]", "site"),
        ("[{host: shop.shops.svc, port: 80}]", "shops"),
    ] {
        let text = FAR.replace(
            "[{serviceRef: {name: shop, namespace: shops}, port: 80}]",
            target,
        );
        let found = Dereferenced {
            services: [(named(namespace, "shop"), service.clone())].into(),
            ..Dereferenced::default()
        };
        let tunnel = valid_with(&text, &found, class());
        let [said] = &unresolved(&tunnel)[..] else {
            panic!("{target}: {:?}", tunnel.findings);
        };
        assert!(said.contains("is of type ExternalName"), "{said}");
        let resources = build(&tunnel, &settings()).unwrap();
        assert_eq!(allowed(&resources), ["db.example.com.:5432"], "{target}");
    }
}

#[test]
fn a_name_that_gateways_elsewhere_dial_is_theirs_to_judge() {
    let entry = ELSEWHERE.replace("web.example.com", "shop.shops.svc");
    assert!(references(&object(&entry), "site").foreign.is_empty());
    let short = entry.replace("shop.shops.svc", "Shop.shops");
    let tunnel = valid_with(&short, &shop(), class());
    let entry_of = config(&build(&tunnel, &settings()).unwrap(), "office-entry");
    assert_eq!(entry_of.forwards[0].targets[0].to_string(), "shop.shops:80");
    // The entry dials the targets of reverse forwards.
    let here = entry.replace("forwards:", "reverseForwards:");
    assert_eq!(
        references(&object(&here), "site").foreign,
        [named("shops", "shop")].into()
    );
}

/// A target that clients may name is also a reference.
#[test]
fn names_and_patterns_in_rules_refer_to_what_they_cover_of_other_namespaces() {
    let foreign = |host: &str| {
        let own = format!("{SMALLEST}allow: [{{host: '{host}'}}]\n");
        let exit = format!("kind: MuxExit\nallow: [{{host: '{host}'}}]\n");
        let [own, exit] = [own, exit].map(|spec| {
            let found = references(&object(&spec), "site").foreign.into_iter();
            let found = found.map(|service| format!("{}/{}", service.namespace, service.name));
            found.collect::<Vec<_>>()
        });
        assert_eq!(own, exit, "{host}");
        own
    };
    for (host, wanted) in [
        ("web.shops.svc", &["shops/web"][..]),
        ("WEB.Shops.SVC.cluster.local.", &["shops/web"]),
        ("web-0.web.shops.svc.example.org", &["shops/web"]),
        ("*.web.shops.svc", &["shops/web"]),
        ("*.shops.svc", &["shops/*"]),
        ("*.Shops.svc.cluster.local", &["shops/*"]),
        ("*.svc", &["*/*"]),
        ("*.svc.cluster.local", &["*/*"]),
        ("*.cluster.local", &["*/*"]),
        ("*.local", &["*/*"]),
        ("web.site.svc", &[]),
        ("*.site.svc", &[]),
        ("web", &[]),
        ("web.shops", &[]),
        ("example.com", &[]),
        ("*.example.com", &[]),
        // `*` covers every name and address. NetworkPolicies restrict the connections.
        ("*", &[]),
    ] {
        assert_eq!(foreign(host), wanted, "{host}");
    }
}

#[test]
fn a_rule_for_what_another_namespace_does_not_permit_is_left_out_and_named() {
    let spec = format!(
        "allow: [{{host: web.shops.svc}}, {{host: '*.shops.svc'}}, {{host: '*.svc'}}, {{host: web.other}}, \
         {{host: '*.example.com'}}, {{cidr: 10.0.0.0/8}}]\ndeny: [{{host: db.shops.svc}}]\n{SMALLEST}"
    );
    let mut dereferenced = shop();
    dereferenced.forbidden = [named("shops", "web"), named("shops", "*"), named("*", "*")].into();
    let tunnel = valid_with(&spec, &dereferenced, class());
    let rules = allowed(&build(&tunnel, &settings()).unwrap());
    assert_eq!(
        rules,
        [
            "web.other.",
            "*.example.com.",
            "10.0.0.0/8",
            "shop.site.svc:80",
            "db.example.com.:5432"
        ]
    );
    let refused = not_permitted(&tunnel);
    for (index, sentence) in [
        "allow[0]: namespace shops does not permit objects of kind MuxTunnel in namespace site to refer to a Service web: create",
        "allow[1]: namespace shops does not permit objects of kind MuxTunnel in namespace site to refer to all its Services: create",
        "allow[2]: the pattern covers the Services of all namespaces, which no grant can permit: write *.NAMESPACE.svc",
    ]
    .into_iter()
    .enumerate()
    {
        assert!(refused[index].starts_with(sentence), "{}", refused[index]);
    }
    assert_eq!(refused.len(), 3);
    // With the permission, the rule is unchanged.
    dereferenced.forbidden.clear();
    let tunnel = valid_with(&spec, &dereferenced, class());
    assert!(not_permitted(&tunnel).is_empty());
    let rules = allowed(&build(&tunnel, &settings()).unwrap());
    assert_eq!(rules[..3], ["web.shops.svc", "*.shops.svc", "*.svc"]);
}

/// The author of an exit needs a grant for MuxExits.
#[test]
fn an_exit_needs_the_permission_of_the_namespaces_of_its_targets() {
    let spec =
        "kind: MuxExit\nallow: [{host: shop.shops.svc, port: 80}, {host: web.example.com}]\n";
    let named = Dereferenced {
        credentials: keys(),
        ..forbidden()
    };
    let valid = valid_with(spec, &named, class());
    let [sentence] = &not_permitted(&valid)[..] else {
        panic!("{:?}", valid.findings);
    };
    let begin = "allow[0]: namespace shops does not permit objects of kind MuxExit in namespace site to refer to a Service shop";
    assert!(sentence.starts_with(begin), "{sentence}");
    let exit = config(&build(&valid, &settings()).unwrap(), "office-exit");
    let rules: Vec<_> = exit.allow.iter().map(ToString::to_string).collect();
    assert_eq!(rules, ["web.example.com."]);
}

/// A grant that names a Service permits only this Service, not a pattern.
#[test]
fn a_pattern_needs_a_grant_for_the_whole_namespace() {
    let spec = |name: Option<&str>| muxtunnel_crds::MuxGrantSpec {
        from: vec![
            serde_json::from_value(json!({
                "group": "muxtunnel.dev", "kind": "MuxTunnel", "namespace": "site",
            }))
            .unwrap(),
        ],
        to: vec![
            serde_json::from_value(json!({"group": "", "kind": "Service", "name": name})).unwrap(),
        ],
    };
    let every = muxtunnel_operator::tunnel_controller::references::EVERY;
    assert!(spec(None).permits("MuxTunnel", "site", every));
    assert!(!spec(Some("web")).permits("MuxTunnel", "site", every));
}
