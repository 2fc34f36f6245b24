//! Tests the pure steps of a tunnel: YAML -> validate -> build -> assert, and verdicts on
//! constructed observations. The fixture is called `office`, not `muxtunnel`. So a test fails if a
//! label has the product's name instead of the object's name.

mod build;
mod carriers;
mod listeners;
mod network;
mod network_policy;
pub(crate) mod privileges;
mod probe;
mod recorded;
mod references;
mod replicas;
mod ssh;
mod verdicts;

use k8s_openapi::api::core::v1::Service;
use muxtunnel_crds::{KeyOrigin, KeyStatus, MuxTunnel};
use muxtunnel_operator::settings::Settings;
use muxtunnel_operator::tunnel_controller::build::{Resources, build};
use muxtunnel_operator::tunnel_controller::dereference::{Credentials, Dereferenced};
use muxtunnel_operator::tunnel_controller::hindrance::Hindrance;
use muxtunnel_operator::tunnel_controller::keyring::OwnKey;
use muxtunnel_operator::tunnel_controller::references::ServiceName;
use muxtunnel_operator::tunnel_controller::validate::{ValidatedTunnel, validate};
use serde_json::{Value, json};

use crate::fixtures::tunnel::{
    DIRECT, ELSEWHERE, ENTRY_KEY, EXIT_KEY, FAR, MANAGED, SMALLEST, settings, shop_json, tuned,
    tunnel_json,
};

fn tunnel(spec: &str) -> MuxTunnel {
    serde_json::from_value(tunnel_json(spec)).unwrap()
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

/// The keys for each side of a tunnel `office`.
fn keys() -> Credentials {
    let own = KeyStatus {
        secret_name: "office-key-1".to_owned(),
        generation: 1,
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

fn valid_with(spec: &str, named: &Dereferenced, settings: &Settings) -> ValidatedTunnel {
    match validate(&tunnel(spec), named, settings) {
        Ok(valid) => *valid,
        Err(hindrance) => panic!("{hindrance:?}"),
    }
}

fn valid(spec: &str) -> ValidatedTunnel {
    valid_with(spec, &shop(), &settings())
}

fn built(spec: &str) -> Resources {
    build(&valid(spec), &settings()).unwrap()
}

/// The child with that name, as JSON.
fn child<K: serde::Serialize>(children: &[K], name: &str) -> Value {
    children
        .iter()
        .map(|child| serde_json::to_value(child).unwrap())
        .find(|child| child["metadata"]["name"] == name)
        .unwrap_or_else(|| panic!("no child {name}"))
}
