//! The exits that entries dial, and the rendezvous where exits wait. Pure.

use std::net::Ipv6Addr;

use muxtunnel_contract::secrets;
use muxtunnel_crds::{CarrierService, Connect, ExitRendezvous};
use muxtunnel_gateway_config::{self as config, CARRIER_PORT, ConnectRendezvous, MeetingPlace};

use super::ValidatedObject;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::object::Object;

/// Suffix of the Service that resolves to the addresses of an exit's pods.
pub(in crate::tunnel_controller) const HEADLESS: &str = "headless";

/// `HOST:PORT`, with an IPv6 address in brackets.
fn address(host: &str, port: u16) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(host) => format!("[{host}]:{port}"),
        Err(_) => format!("{host}:{port}"),
    }
}

impl ValidatedObject {
    /// Whether entries find each pod of the exit of the same object by its headless Service, because a
    /// session may have its carriers at several pods.
    #[must_use]
    pub fn finds_pods(&self) -> bool {
        self.has_both_ends() && self.carrier.connection.protocol().can().several_exits
    }
}

/// The exits that the entries of `object` dial, in the order of the spec.
pub(super) fn of(object: &Object, holder: &Holder) -> Vec<config::Connect> {
    match object.has_both_ends() {
        true => own(object, holder),
        false => object.connect().iter().map(elsewhere).collect(),
    }
}

/// The exit of the same object. If entries find its pods, the Service is the exit of the next order.
fn own(object: &Object, holder: &Holder) -> Vec<config::Connect> {
    let service = holder.kind.child(End::Exit, &holder.name);
    let host = |name: &str| format!("{name}.{}.svc", holder.namespace);
    let balanced = address(&host(&service), CarrierService::PORT_DEFAULT);
    let pods = address(&host(&format!("{service}-{HEADLESS}")), CARRIER_PORT);
    let addresses = match object.carrier().connection.protocol().can().several_exits {
        true => vec![pods, balanced],
        false => vec![balanced],
    };
    let named = (0..).zip(secrets::EXIT_NAMES).zip(addresses);
    let exits = named.map(|((order, name), address)| config::Connect {
        name: name.to_owned(),
        order,
        address: Some(address),
        ..config::Connect::default()
    });
    exits.collect()
}

fn elsewhere(asked: &Connect) -> config::Connect {
    let rendezvous = asked.rendezvous.as_ref();
    config::Connect {
        name: asked.name.clone(),
        order: asked.order.unwrap_or_default(),
        address: (asked.host.as_ref()).and_then(|host| Some(address(host, asked.port?))),
        command: Vec::new(),
        rendezvous: rendezvous.map(|asked| ConnectRendezvous {
            address: address(&asked.host, asked.port),
            public_keys: asked.public_keys.clone(),
        }),
        public_keys: asked.public_keys.clone(),
        certificate_names: asked.certificate_names.clone(),
        web_socket: asked.web_socket.clone(),
    }
}

/// Where the exits of `object` wait.
pub(super) fn meetings(object: &Object) -> Vec<MeetingPlace> {
    let asked = object.exit().map_or(&[][..], |exit| &exit.spec.rendezvous);
    let meeting = |ExitRendezvous { name, rendezvous }: &ExitRendezvous| MeetingPlace {
        name: name.clone(),
        address: address(&rendezvous.host, rendezvous.port),
        public_keys: rendezvous.public_keys.clone(),
    };
    asked.iter().map(meeting).collect()
}
