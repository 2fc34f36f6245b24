//! Tests the pure steps of an object: YAML -> validate -> build -> assert, and verdicts on
//! constructed observations. The fixture is called `office`, not `muxtunnel`. So a test fails if a
//! label has the product's name instead of the object's name.

mod build;
mod carriers;
mod configuration;
mod hosts;
mod keys;
mod kinds;
mod listeners;
mod network;
mod network_policy;
pub(crate) mod privileges;
mod probe;
mod recorded;
mod references;
mod rendezvous;
mod replicas;
mod services;
mod ssh;
mod verdicts;
mod wan;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use muxtunnel_codes::Code;
use muxtunnel_crds::{KeyOrigin, KeyStatus};
use muxtunnel_operator::class::Class;
use muxtunnel_operator::settings::Settings;
use muxtunnel_operator::tunnel_controller::build::{Resources, build};
use muxtunnel_operator::tunnel_controller::dereference::{Credentials, Dereferenced};
use muxtunnel_operator::tunnel_controller::hindrance::Hindrance;
use muxtunnel_operator::tunnel_controller::keyring::OwnKey;
use muxtunnel_operator::tunnel_controller::object::Object;
use muxtunnel_operator::tunnel_controller::references::ServiceName;
use muxtunnel_operator::tunnel_controller::validate::{ValidatedObject, validate};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::fixtures::tunnel::{
    ELSEWHERE, ENTRY_KEY, EXIT, EXIT_KEY, FAR, MANAGED, OPEN, RENDEZVOUS, SMALLEST, class,
    class_with, object_json, settings, shop_json, tuned,
};

/// The key of a second exit in another cluster.
const SECOND_EXIT_KEY: &str = "mtx1qxqqdnp0rq66l92gsv7ed83xsxu6pcwxh4cez5kqxtn3rn4gr88n2mamvh8";
/// The key of a rendezvous in another cluster.
const RENDEZVOUS_KEY: &str = "mtr1q9503hlhl7dhlagz72halmawpml35gucsg95q5ym74fws0r59wa4s8ufws6";

/// Decodes an object of the kind that it names.
fn try_decoded(object: Value) -> serde_json::Result<Object> {
    fn of<K: DeserializeOwned>(object: Value) -> serde_json::Result<Arc<K>> {
        serde_json::from_value(object).map(Arc::new)
    }
    let kind = object["kind"].as_str().unwrap().to_owned();
    match kind.as_str() {
        "MuxTunnel" => of(object).map(Object::Tunnel),
        "MuxExit" => of(object).map(Object::Exit),
        "MuxRendezvous" => of(object).map(Object::Rendezvous),
        _ => panic!("{kind} has no gateways"),
    }
}

/// The object of a text of [`object_json`].
fn object(text: &str) -> Object {
    try_decoded(object_json(text)).unwrap()
}

fn named(namespace: &str, name: &str) -> ServiceName {
    ServiceName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn shop() -> Dereferenced {
    let service: Service = serde_json::from_value(shop_json()).unwrap();
    Dereferenced {
        services: [(named("site", "shop"), service)].into(),
        credentials: keys(),
        ..Dereferenced::default()
    }
}

/// The keys for each kind of an object `office`.
fn keys() -> Credentials {
    let own = KeyStatus {
        secret_name: "office-key-1".to_owned(),
        generation: Some(1),
        public_key: None,
        origin: KeyOrigin::Found,
    };
    Credentials {
        pair: Some("office-pair-1-bcdfg".to_owned()),
        own: vec![OwnKey {
            status: own,
            is_lost: false,
        }],
        ..Credentials::default()
    }
}

fn valid_with(spec: &str, named: &Dereferenced, class: Class) -> ValidatedObject {
    match validate(&object(spec), named, class) {
        Ok(valid) => *valid,
        Err(hindrance) => panic!("{hindrance:?}"),
    }
}

fn valid(spec: &str) -> ValidatedObject {
    valid_with(spec, &shop(), class())
}

fn built(spec: &str) -> Resources {
    build(&valid(spec), &settings()).unwrap()
}

/// The sentence with which an invalid object is refused.
fn refusal(spec: &str) -> String {
    refusal_with(spec, class())
}

fn refusal_with(spec: &str, class: Class) -> String {
    let valid = match validate(&object(spec), &shop(), class) {
        Err(Hindrance::Invalid(problem)) => return problem,
        Err(Hindrance::Blocked(problem)) => return problem.detail,
        valid => valid.unwrap(),
    };
    // The gateway's own check of its configuration.
    match build(&valid, &settings()) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("accepted: {spec}"),
    }
}

/// Asserts that each object is refused with a sentence that begins with this text.
fn assert_refused<'a>(cases: impl IntoIterator<Item = (String, &'a str)>) {
    for (spec, sentence) in cases {
        let problem = refusal(&spec);
        assert!(problem.starts_with(sentence), "{spec}\n{problem}");
    }
}

/// The problems of the targets with this code.
fn found(valid: &ValidatedObject, code: Code) -> Vec<String> {
    let findings = valid.findings.of(code);
    findings
        .map(muxtunnel_operator::tunnel_controller::validate::Finding::text)
        .collect()
}

fn unresolved(valid: &ValidatedObject) -> Vec<String> {
    found(valid, Code::TargetServiceNotFound)
}

fn not_permitted(valid: &ValidatedObject) -> Vec<String> {
    found(valid, Code::TargetNotPermitted)
}

/// The child with that name, as JSON.
fn child<K: serde::Serialize>(children: &[K], name: &str) -> Value {
    children
        .iter()
        .map(|child| serde_json::to_value(child).unwrap())
        .find(|child| child["metadata"]["name"] == name)
        .unwrap_or_else(|| panic!("no child {name}"))
}
