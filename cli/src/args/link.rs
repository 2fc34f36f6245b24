//! Arguments of `link`.

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::documents;
use crate::duration::Duration;
use crate::output::Format;
use crate::target::{self, Address};

/// Arguments of `link`.
#[derive(Debug, Args)]
pub struct LinkArgs {
    /// The Service, and the number or name of its port. The port is not needed if the Service has
    /// only one.
    #[arg(value_name = "svc/NAME[:PORT]")]
    pub service: ServiceName,
    /// Context of the cluster with the clients. Its namespace is --namespace.
    #[arg(long, value_name = "CONTEXT")]
    pub from: String,
    /// Context of the cluster with the Service.
    #[arg(long, value_name = "CONTEXT")]
    pub to: String,
    /// Namespace of the Service [default: --namespace, otherwise the namespace of the context].
    #[arg(long, value_name = "NAMESPACE")]
    pub to_namespace: Option<String>,
    /// Name of the MuxTunnel [default: the name of the Service].
    #[arg(long)]
    pub name: Option<String>,
    /// Name of the MuxExit, which may exist [default: --name].
    #[arg(long, value_name = "NAME")]
    pub exit: Option<String>,
    /// Name of the MuxPeer [default: the name of the MuxTunnel and of its context].
    #[arg(long, value_name = "NAME")]
    pub peer: Option<String>,
    /// The port at which clients connect to the entry [default: the port of the Service].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// The address at which the entry dials the exit [default: the address of the exit's load
    /// balancer]. PORT is 443 by default. With NodePort, PORT is the node port of a new exit.
    #[arg(
        long,
        value_name = "HOST[:PORT]",
        value_parser = target::address,
        required_if_eq("service_type", "NodePort")
    )]
    pub address: Option<Address>,
    /// Type of the Service of a new exit.
    #[arg(
        long,
        value_enum,
        value_name = "TYPE",
        default_value = "LoadBalancer",
        ignore_case = true
    )]
    pub service_type: Exposure,
    /// Time-out of the whole command.
    #[arg(long, default_value = "5m")]
    pub timeout: Duration,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table", value_parser = documents())]
    pub output: Format,
}

/// How entries of other clusters reach the exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
pub enum Exposure {
    /// Through a load balancer.
    #[value(name = "LoadBalancer")]
    LoadBalancer,
    /// On a port of every node. Needs --address with the host and the port of a node.
    #[value(name = "NodePort")]
    NodePort,
}

/// A Service and one of its ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceName {
    /// The name of the Service.
    pub name: String,
    /// The number or name of the port.
    pub port: Option<String>,
}

impl std::str::FromStr for ServiceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = ["svc/", "service/", "services/"]
            .iter()
            .find_map(|prefix| text.strip_prefix(prefix));
        let name = name.filter(|name| !name.contains('/'));
        let name = name.ok_or("expected svc/NAME or svc/NAME:PORT, such as svc/web:80")?;
        let (name, port) = match name.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (name, None),
        };
        if name.is_empty() || port.is_some_and(str::is_empty) {
            return Err("the name or the port is empty; expected svc/NAME or svc/NAME:PORT".into());
        }
        Ok(Self {
            name: name.to_owned(),
            port: port.map(str::to_owned),
        })
    }
}
