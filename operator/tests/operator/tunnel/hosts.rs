//! Hosts of targets: the Services that they may name, and the hosts and ports that gateways dial.

use muxtunnel_gateway_config::Target;
use muxtunnel_operator::tunnel_controller::references::{
    canonical_host, references, services_of_host,
};

use super::build::config;
use super::references::{allowed, forbidden};
use super::*;

/// A host, the Services that it may name, and the host that pods of namespace site look up.
const HOSTS: [(&str, &[&str], &str); 25] = [
    ("shop", &["site/shop"], "shop"),
    ("Shop.", &["site/shop"], "shop"),
    ("shop.site", &["site/shop"], "shop.site"),
    ("shop.site.svc", &["site/shop"], "shop.site.svc"),
    ("shop.shops.svc", &["shops/shop"], "shop.shops.svc"),
    ("shop.shops.svc.", &["shops/shop"], "shop.shops.svc"),
    (
        "pod-0.shop.shops.svc",
        &["shops/shop"],
        "pod-0.shop.shops.svc",
    ),
    (
        "SHOP.Shops.SVC.cluster.local",
        &["shops/shop"],
        "shop.shops.svc.cluster.local.",
    ),
    (
        "shop.shops.svc.example.org.",
        &["shops/shop"],
        "shop.shops.svc.example.org.",
    ),
    (
        "shop.site.svc.cluster.local",
        &["site/shop"],
        "shop.site.svc.cluster.local.",
    ),
    // A Service, a namespace and a label of the cluster's domain may each be called `svc`.
    ("svc", &["site/svc"], "svc"),
    ("svc.shops.svc", &["shops/svc"], "svc.shops.svc"),
    ("shop.svc.svc", &["svc/shop"], "shop.svc.svc"),
    (
        "shop.shops.svc.svc.example.org",
        &["shops/shop", "svc/shops"],
        "shop.shops.svc.svc.example.org.",
    ),
    // The host gets a final dot, because a resolver must not complete it to a Service of another
    // namespace.
    ("shop.shops", &[], "shop.shops."),
    ("kubernetes.default", &[], "kubernetes.default."),
    ("shop.svc", &[], "shop.svc."),
    ("svc.shops", &[], "svc.shops."),
    ("pod-0.shop.shops", &[], "pod-0.shop.shops."),
    ("site.shops", &[], "site.shops."),
    ("example.com", &[], "example.com."),
    ("a_b.site", &[], "a_b.site"),
    ("10.0.0.1", &[], "10.0.0.1"),
    ("fd00::1", &[], "fd00::1"),
    ("2001:DB8:0::1", &[], "2001:db8::1"),
];

#[test]
fn names_of_services_are_recognised_and_others_are_not_completed_to_one() {
    for (host, services, looked_up) in HOSTS {
        let found = services_of_host(host, "site");
        let found: Vec<_> = found
            .iter()
            .map(|found| format!("{}/{}", found.namespace, found.name))
            .collect();
        assert_eq!(found, services, "{host}");
        assert_eq!(canonical_host(host, "site"), looked_up, "{host}");
    }
    let longest = ["a"; 127].join(".");
    assert_eq!(canonical_host(&longest, "site"), longest);
}

/// The targets of the exit, if the forward names `host` and the own namespace has the Service.
fn dialled(host: &str, service: Option<(&str, &str)>) -> Vec<String> {
    let short = FAR.replace(
        "[{serviceRef: {name: shop, namespace: shops}, port: 80}]",
        &format!("[{{host: {host}, port: 5432}}]"),
    );
    let services = service.map(|(name, type_)| {
        let spec = json!({"type": type_, "clusterIP": "None", "ports": [{"port": 5432}]});
        let service = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}));
        (named("site", name), service.unwrap())
    });
    let named = Dereferenced {
        services: services.into_iter().collect(),
        ..Dereferenced::default()
    };
    let resources = build(&valid_with(&short, &named, class()), &settings()).unwrap();
    allowed(&resources)
}

/// `db-0.db` is what a pod of the own namespace calls the first pod of the StatefulSet `db`.
#[test]
fn a_pod_of_a_stateful_set_is_dialled_by_its_whole_name_if_its_service_exists() {
    let db = Some(("db", "ClusterIP"));
    assert_eq!(dialled("db-0.db", db)[0], "db-0.db.site.svc:5432");
    assert_eq!(dialled("DB-0.Db", db)[0], "db-0.db.site.svc:5432");
    // The operator looks the Service up, and reconciles if it appears.
    let short = FAR.replace("db.example.com", "db-0.db");
    let found = references(&object(&short), "site");
    assert!(found.services.contains(&named("site", "db")));
    assert_eq!(found.foreign, [named("shops", "shop")].into());
    // In all other cases, the name is final. So it reaches no Service `db-0` of a namespace `db`.
    for (host, service) in [
        ("db-0.db", None),
        ("db-0.db", Some(("web", "ClusterIP"))),
        ("db-0.db", Some(("db", "ExternalName"))),
        ("db-0.db.", db),
        ("a.db-0.db", db),
        ("_db.db", db),
    ] {
        let name = host.trim_end_matches('.');
        let named = format!("{name}.:5432");
        assert_eq!(dialled(host, service)[0], named, "{host} {service:?}");
    }
}

#[test]
fn a_short_name_of_a_service_is_no_way_around_it() {
    for host in ["shop.shops", "pod-0.shop.shops"] {
        let short = FAR.replace(
            "[{serviceRef: {name: shop, namespace: shops}, port: 80}]",
            &format!("[{{host: {host}, port: 80}}]"),
        );
        let tunnel = valid_with(&short, &forbidden(), class());
        let resources = build(&tunnel, &settings()).unwrap();
        assert_eq!(allowed(&resources)[0], format!("{host}.:80"));
    }
}

/// The target port of the forward `web` of [`SMALLEST`], or the message about it.
fn led_to(target_port: &Value, ports: &[u16]) -> Result<u16, String> {
    let mut service = shop_json();
    service["spec"]["clusterIP"] = json!("None");
    service["spec"]["ports"][1]["targetPort"] = target_port.clone();
    let mut named = shop();
    let name = super::named("site", "shop");
    named
        .services
        .insert(name.clone(), serde_json::from_value(service).unwrap());
    let endpoints = muxtunnel_operator::caches::Endpoints {
        ready: true,
        ports: [("http".to_owned(), ports.iter().copied().collect())].into(),
    };
    named.endpoints.insert(name, endpoints);
    let valid = valid_with(SMALLEST, &named, class());
    let resources = build(&valid, &settings()).unwrap();
    let entry = config(&resources, "office-entry");
    let web = entry.forwards.iter().find(|forward| forward.name == "web");
    web.map(|web| port_of(&web.targets[0]))
        .ok_or_else(|| unresolved(&valid).join("; "))
}

fn port_of(target: &Target) -> u16 {
    let text = target.to_string();
    text.rsplit_once(':').unwrap().1.parse().unwrap()
}

#[test]
fn a_service_without_an_address_is_dialled_at_the_port_of_its_pods() {
    assert_eq!(led_to(&Value::Null, &[]), Ok(80));
    assert_eq!(led_to(&json!(8080), &[]), Ok(8080));
    assert_eq!(led_to(&json!("http"), &[8081]), Ok(8081));
    for ports in [&[][..], &[8081, 8082]] {
        let said = led_to(&json!("http"), ports).unwrap_err();
        let begin =
            "forward web: Service shop is headless, and its port 80 has the targetPort http";
        assert!(said.starts_with(begin), "{said}");
    }
}
