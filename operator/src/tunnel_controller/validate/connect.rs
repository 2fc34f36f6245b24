//! The exits that entries dial, and the rendezvous where exits wait. Pure.

use std::fmt;
use std::net::Ipv6Addr;

use muxtunnel_contract::secrets;
use muxtunnel_crds::{self as crds, CarrierService, Connect, ExitRendezvous, RendezvousRef};
use muxtunnel_gateway_config::{
    CARRIER_PORT, ConnectRendezvous, ConnectWebSocket, ExpirationTime, GatewayKey, KeyRole,
    MeetingPlace, Member, check_members,
};

use super::{ValidatedCarrier, each};
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::object::Object;

/// Suffix of the Service that resolves to the addresses of an exit's pods.
pub(in crate::tunnel_controller) const HEADLESS: &str = "headless";

/// A host and a port. Its text form has an IPv6 address in brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// A DNS name, or an address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Address {
    /// The address of a host and a port.
    #[must_use]
    pub fn new(host: &str, port: u16) -> Self {
        let host = host.to_owned();
        Self { host, port }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse::<Ipv6Addr>() {
            Ok(host) => write!(f, "[{host}]:{}", self.port),
            Err(_) => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// An exit that entries dial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidatedConnect {
    /// The name.
    pub name: String,
    /// Entries use the lowest order that answers.
    pub order: u32,
    /// The address of the exit, unless it waits at a rendezvous.
    pub address: Option<Address>,
    /// The address that entries dial if `address` does not answer.
    pub fallback: Option<Address>,
    /// The rendezvous where the exit waits.
    pub rendezvous: Option<ConnectRendezvous>,
    /// In mode PublicKeys: the keys of an exit elsewhere.
    pub public_keys: Vec<GatewayKey>,
    /// In mode Certificates: the names of an exit elsewhere, of which its certificate has one.
    pub certificate_names: Vec<String>,
    /// The requests of carriers over WebSocket.
    pub web_socket: Option<ConnectWebSocket>,
}

/// The exits that the entries of `object` dial, in the order of the spec.
pub(super) fn of(
    object: &Object,
    holder: &Holder,
    carrier: &ValidatedCarrier,
) -> Result<Vec<ValidatedConnect>, String> {
    if object.has_both_ends() {
        return Ok(vec![own(holder, carrier)]);
    }
    object.connect().iter().map(elsewhere).collect()
}

/// The exit of the same object. If a session may have its carriers at several pods, entries find each
/// pod by the headless Service.
fn own(holder: &Holder, carrier: &ValidatedCarrier) -> ValidatedConnect {
    let service = holder.kind.child(End::Exit, &holder.name);
    let host = |name: &str| format!("{name}.{}.svc", holder.namespace);
    let balanced = Address::new(&host(&service), CarrierService::PORT_DEFAULT);
    let (address, fallback) = match carrier.protocol.can().several_exits {
        true => {
            let pods = host(&format!("{service}-{HEADLESS}"));
            (Address::new(&pods, CARRIER_PORT), Some(balanced))
        }
        false => (balanced, None),
    };
    ValidatedConnect {
        name: secrets::EXIT_NAMES[0].to_owned(),
        order: 0,
        address: Some(address),
        fallback,
        rendezvous: None,
        public_keys: Vec::new(),
        certificate_names: Vec::new(),
        web_socket: None,
    }
}

fn elsewhere(asked: &Connect) -> Result<ValidatedConnect, String> {
    let Connect {
        name,
        order,
        host,
        port,
        rendezvous,
        public_keys,
        certificate_names,
        web_socket,
    } = asked;
    let wrong = |problem: String| format!("connect {name}: {problem}");
    let at_a_rendezvous = rendezvous.as_ref().map(|asked| {
        let found = at_a_rendezvous(asked);
        found.map_err(|problem| wrong(format!("rendezvous.{problem}")))
    });
    let at_a_rendezvous = at_a_rendezvous.transpose()?;
    let address = match (host, port, rendezvous) {
        (Some(host), Some(port), None) => Some(Address::new(host, *port)),
        (None, None, Some(_)) => None,
        _ => return Err(wrong("set either host and port, or rendezvous".to_owned())),
    };
    let web_socket = web_socket.as_ref();
    Ok(ValidatedConnect {
        name: name.clone(),
        order: order.unwrap_or_default(),
        address,
        fallback: None,
        rendezvous: at_a_rendezvous,
        public_keys: keys("publicKeys", public_keys, KeyRole::Exit).map_err(wrong)?,
        certificate_names: certificate_names.clone(),
        web_socket: web_socket.map(|asked| ConnectWebSocket {
            host: asked.host.clone(),
            scheme: asked.scheme.unwrap_or_default(),
        }),
    })
}

/// Where the exits of `object` wait.
pub(super) fn meetings(object: &Object) -> Result<Vec<MeetingPlace>, String> {
    let asked = object.exit().map_or(&[][..], |exit| &exit.spec.rendezvous);
    let meeting = |ExitRendezvous { name, rendezvous }: &ExitRendezvous| {
        let found = at_a_rendezvous(rendezvous);
        let found = found.map_err(|problem| format!("rendezvous {name}: {problem}"))?;
        Ok(MeetingPlace {
            name: name.clone(),
            address: found.address,
            public_keys: found.public_keys,
        })
    };
    asked.iter().map(meeting).collect()
}

fn at_a_rendezvous(asked: &RendezvousRef) -> Result<ConnectRendezvous, String> {
    Ok(ConnectRendezvous {
        address: Address::new(&asked.host, asked.port).to_string(),
        public_keys: keys("publicKeys", &asked.public_keys, KeyRole::Rendezvous)?,
    })
}

/// The members of a rendezvous.
pub(super) fn members(object: &Object) -> Result<Vec<Member>, String> {
    let asked = object.rendezvous();
    let asked = asked.map_or(&[][..], |rendezvous| &rendezvous.spec.members);
    let member = |asked: &crds::Member| {
        let crds::Member {
            name,
            public_keys,
            suspend,
            expiration_time,
        } = asked;
        let wrong = |problem: String| format!("members {name}: {problem}");
        let public_keys = each("publicKeys", public_keys, |text| text.parse::<GatewayKey>());
        let time = expiration_time.as_ref();
        let time = time.map(|time| ExpirationTime::parse(&time.0.to_string()));
        let time = time.transpose();
        Ok(Member {
            name: Some(name.clone()),
            public_keys: public_keys.map_err(wrong)?,
            suspend: *suspend,
            expiration_time: time.map_err(|problem| wrong(format!("expirationTime: {problem}")))?,
        })
    };
    let members: Vec<Member> = asked.iter().map(member).collect::<Result<_, String>>()?;
    check_members(&members).map_err(|found| {
        let name = members.get(found.index).and_then(|one| one.name.as_deref());
        let name = name.unwrap_or_default();
        format!("members {name}: {}: {}", found.field, found.problem)
    })?;
    Ok(members)
}

/// The keys of gateways with the role `role`.
pub(super) fn keys(
    field: &str,
    asked: &[String],
    role: KeyRole,
) -> Result<Vec<GatewayKey>, String> {
    each(field, asked, |text| GatewayKey::of_role(text, role))
}
