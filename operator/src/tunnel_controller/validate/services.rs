//! The Services with the ports of clients. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use muxtunnel_contract::ports;
use muxtunnel_crds::{Clients, ClientsType, ServiceSettings, ServiceType, Ssh};
use muxtunnel_gateway_config::{ADMIN_PORT, CARRIER_PORT};

use super::ValidatedGateway;
use crate::tunnel_controller::end::End;
use crate::tunnel_controller::holder::Holder;
use crate::tunnel_controller::object::Object;

/// The name of the port for users of ssh, and the suffix of its Service.
pub(in crate::tunnel_controller) const SSH: &str = "ssh";

/// A Service with ports of clients.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedService {
    /// The name.
    pub name: String,
    /// The end that listens.
    pub end: End,
    /// The settings.
    pub settings: ServiceSettings,
    /// The ports.
    pub ports: Vec<ListenPort>,
}

/// A port of clients.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenPort {
    /// The name of the forward, the proxy or the reverse port.
    pub name: String,
    /// The port.
    pub port: u16,
    /// The port of the nodes.
    pub node_port: Option<u16>,
    /// The clients that the NetworkPolicy admits. `None`: all clients.
    pub clients: Option<Vec<NetworkPolicyPeer>>,
}

/// A port in the spec.
struct Asked<'a> {
    end: End,
    /// The item of the spec.
    kind: &'static str,
    name: &'a str,
    port: u16,
    service_name: Option<&'a str>,
    node_port: Option<u16>,
    from: Option<&'a Clients>,
}

/// The item of the spec and its name.
macro_rules! asked {
    ($end:expr, $kind:literal, $item:expr) => {
        Asked {
            end: $end,
            kind: $kind,
            name: &$item.name,
            port: $item.port,
            service_name: $item.service_name.as_deref(),
            node_port: $item.node_port,
            from: $item.from.as_ref(),
        }
    };
}

/// All ports of clients, in the order of the spec.
fn asked(object: &Object) -> Vec<Asked<'_>> {
    let forwards = object.forwards().iter();
    let forwards = forwards.map(|item| asked!(End::Entry, "forward", item));
    let proxies = object.proxies().iter();
    let proxies = proxies.map(|item| asked!(End::Entry, "proxy", item));
    // The exit of a reverse forward may belong to another object, which has the port.
    let reverse = object.reverse_forwards().iter();
    let reverse = reverse.filter(|_| object.has_exit());
    let reverse = reverse.map(|item| asked!(End::Exit, "reverse forward", item));
    let exit = object
        .exit()
        .map_or(&[][..], |exit| &exit.spec.reverse_ports);
    let ports = exit
        .iter()
        .map(|item| asked!(End::Exit, "reverse port", item));
    forwards
        .chain(proxies)
        .chain(reverse)
        .chain(ports)
        .collect()
}

/// The Services of the ports, by name.
pub(super) fn of(
    object: &Object,
    holder: &Holder,
    gateways: &BTreeMap<End, ValidatedGateway>,
) -> Result<Vec<ValidatedService>, String> {
    let settings = |name: &str| {
        let mut asked = object.services().iter();
        let asked = asked.find(|service| service.name == name);
        asked.map_or_else(ServiceSettings::default, |asked| asked.settings.clone())
    };
    let mut used = Used::of(object, gateways);
    let mut services: BTreeMap<String, ValidatedService> = BTreeMap::new();
    for asked in asked(object) {
        let of_item = |problem: String| format!("{} {}: {problem}", asked.kind, asked.name);
        let name = asked.service_name.map_or_else(
            || match asked.end {
                End::Exit => holder.kind.reverse_service(&holder.name),
                end => holder.kind.child(end, &holder.name),
            },
            str::to_owned,
        );
        used.take(asked.end, asked.port).map_err(of_item)?;
        let service = services.entry(name.clone());
        let service = service.or_insert_with(|| ValidatedService {
            settings: settings(&name),
            name,
            end: asked.end,
            ports: Vec::new(),
        });
        check(&asked, service).map_err(of_item)?;
        service.ports.push(ListenPort {
            name: asked.name.to_owned(),
            port: asked.port,
            node_port: asked.node_port,
            clients: Clients::admitted(asked.from, ClientsType::Namespace),
        });
    }
    Ok(services.into_values().collect())
}

/// Checks a port for the Service `service`, which has the earlier ports.
fn check(asked: &Asked<'_>, service: &ValidatedService) -> Result<(), String> {
    let name = &service.name;
    if service.end != asked.end {
        return Err(format!(
            "serviceName {name} is also the Service of a port of the {}: choose another name",
            service.end.component()
        ));
    }
    if service.ports.iter().any(|port| port.name == asked.name) {
        return Err(format!(
            "Service {name} has another port of this name: choose another name, or another serviceName"
        ));
    }
    let is_exposed = service.settings.type_() != ServiceType::ClusterIP;
    if is_exposed && asked.from.is_none() {
        return Err(format!(
            "Service {name} of type {} needs from, the clients that may reach the port",
            service.settings.type_().as_str()
        ));
    }
    if !is_exposed && asked.node_port.is_some() {
        return Err(format!(
            "nodePort needs type NodePort or LoadBalancer of Service {name}: set services[].type, or remove nodePort"
        ));
    }
    Ok(())
}

/// The ports in use, by end.
struct Used(BTreeSet<(End, u16)>);

impl Used {
    /// The ports of the gateways themselves.
    fn of(object: &Object, gateways: &BTreeMap<End, ValidatedGateway>) -> Self {
        let probe = object.wan_emulation().map(|_| ports::WAN_PROBE);
        let all = gateways.iter().flat_map(|(end, gateway)| {
            let own = [CARRIER_PORT, ADMIN_PORT].into_iter();
            let ssh = gateway.ssh.as_ref().map(Ssh::port);
            let own = own.chain(probe).chain(ssh);
            own.map(|port| (*end, port))
        });
        Self(all.collect())
    }

    fn take(&mut self, end: End, port: u16) -> Result<(), String> {
        match self.0.insert((end, port)) {
            true => Ok(()),
            false => Err(format!(
                "port {port} of the {} gateways is in use: choose another port",
                end.component()
            )),
        }
    }
}
