//! The Services with the ports of clients. Pure.

use std::collections::{BTreeMap, BTreeSet};

use muxtunnel_contract::ports;
use muxtunnel_crds::{ListenPort, ServiceSettings, ServiceType, Ssh};
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

/// All ports of clients, in the order of the spec, each with its end and the noun of the item.
fn asked(object: &Object) -> impl Iterator<Item = (End, &'static str, &ListenPort)> {
    let forwards = object.forwards().iter();
    let forwards = forwards.map(|item| (End::Entry, "forward", &item.listen));
    let proxies = object.proxies().iter();
    let proxies = proxies.map(|item| (End::Entry, "proxy", &item.listen));
    // The exit of a reverse forward may belong to another object, which has the port.
    let reverse = object.reverse_forwards().iter();
    let reverse = reverse.filter(|_| object.has_exit());
    let reverse = reverse.map(|item| (End::Exit, "reverse forward", &item.listen));
    let exit = object.exit().into_iter();
    let ports = exit.flat_map(|exit| &exit.spec.reverse_ports);
    let ports = ports.map(|port| (End::Exit, "reverse port", port));
    forwards.chain(proxies).chain(reverse).chain(ports)
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
    let mut used = own_ports(object, gateways);
    let mut services: BTreeMap<String, ValidatedService> = BTreeMap::new();
    for (end, noun, asked) in asked(object) {
        let of_item = |problem: String| format!("{noun} {}: {problem}", asked.name);
        let name = asked.service_name.clone().unwrap_or_else(|| match end {
            End::Exit => holder.kind.reverse_service(&holder.name),
            end => holder.kind.child(end, &holder.name),
        });
        if !used.insert((end, asked.port)) {
            return Err(of_item(format!(
                "port {} of the {} gateways is in use: choose another port",
                asked.port,
                end.component()
            )));
        }
        let service = services.entry(name.clone());
        let service = service.or_insert_with(|| ValidatedService {
            settings: settings(&name),
            name,
            end,
            ports: Vec::new(),
        });
        check(end, asked, service).map_err(of_item)?;
        service.ports.push(asked.clone());
    }
    Ok(services.into_values().collect())
}

/// Checks a port of `end` for the Service `service`, which has the earlier ports.
fn check(end: End, asked: &ListenPort, service: &ValidatedService) -> Result<(), String> {
    let name = &service.name;
    if service.end != end {
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

/// The ports of the gateways themselves, by end.
fn own_ports(object: &Object, gateways: &BTreeMap<End, ValidatedGateway>) -> BTreeSet<(End, u16)> {
    let probe = object.wan_emulation().map(|_| ports::WAN_PROBE);
    let all = gateways.iter().flat_map(|(end, gateway)| {
        let own = [CARRIER_PORT, ADMIN_PORT].into_iter();
        let ssh = gateway.ssh.as_ref().map(Ssh::port);
        own.chain(probe).chain(ssh).map(|port| (*end, port))
    });
    all.collect()
}
