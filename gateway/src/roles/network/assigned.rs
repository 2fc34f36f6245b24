//! What an entry does with the addresses and the resolvers that its exit assigns: it takes those that its own configuration
//! lets the exit assign, and applies them to the interface and to a file.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{self as config, Cidr, status};
use muxtunnel_proto::Assignment;

use super::addresses::{Addresses, networks};
use crate::net::interface;

/// What was assigned last.
pub(super) struct Assigned {
    device: String,
    /// Networks of the entry's side: nothing else is taken as an address of this host.
    own: Vec<IpNet>,
    /// What is routed to the interface.
    routes: Vec<Cidr>,
    sets_addresses: bool,
    dns_file: Option<DnsFile>,
    current: RefCell<Assignment>,
}

impl Assigned {
    pub(super) fn of(configured: &config::Network) -> Self {
        Self {
            device: configured.device.clone(),
            own: networks(&configured.entry_cidrs).collect(),
            routes: configured.exit_cidrs.clone(),
            sets_addresses: configured.set_addresses,
            dns_file: configured.dns_file.clone().map(DnsFile::at),
            current: RefCell::default(),
        }
    }

    /// Applies an assignment; returns it as it is in force, where it changed.
    pub(super) fn apply(
        &self,
        assignment: &Assignment,
        addresses: &Addresses,
    ) -> Option<status::Assigned> {
        let taken = self.taken(assignment, addresses);
        if *self.current.borrow() == taken {
            return None;
        }
        tracing::info!(
            addresses = %list(&taken.addresses),
            dns_servers = %list(&taken.dns_servers),
            dns_domains = %taken.dns_domains.join(" "),
            "The exit has assigned addresses"
        );
        if taken != *assignment {
            tracing::warn!(
                code = %Code::NoPackets,
                "The exit assigns addresses that are not within entryCIDRs, or resolvers that are not within exitCIDRs: they are not used"
            );
        }
        addresses.set_own(&taken.addresses);
        self.set_addresses(&taken.addresses);
        self.write_resolvers(&taken);
        let assigned = status::Assigned {
            addresses: taken.addresses.clone(),
            dns_servers: taken.dns_servers.clone(),
            dns_domains: taken.dns_domains.clone(),
        };
        self.current.replace(taken);
        Some(assigned)
    }

    /// What of it the exit may assign.
    fn taken(&self, assignment: &Assignment, addresses: &Addresses) -> Assignment {
        let is_own = |address: &IpAddr| self.own.iter().any(|own| own.contains(address));
        let assigned = assignment.addresses.iter().copied();
        let servers = assignment.dns_servers.iter().copied();
        let dns_servers: Vec<_> = servers
            .filter(|server| addresses.is_of_exit(*server))
            .collect();
        Assignment {
            addresses: assigned.filter(is_own).collect(),
            dns_domains: match dns_servers.is_empty() {
                true => Vec::new(),
                false => assignment.dns_domains.clone(),
            },
            dns_servers,
        }
    }

    fn set_addresses(&self, addresses: &[IpAddr]) {
        if !self.sets_addresses || addresses.is_empty() {
            return;
        }
        let cidrs: Vec<_> = addresses.iter().copied().map(alone).collect();
        if let Err(error) = interface::assign(&self.device, &cidrs, &self.routes) {
            tracing::error!(code = %Code::NoPackets, %error, "The assigned addresses are not set");
        }
    }

    fn write_resolvers(&self, assignment: &Assignment) {
        let Some(file) = &self.dns_file else {
            return;
        };
        let done = match assignment.dns_servers.is_empty() {
            true => file.remove(),
            false => file.write(&assignment.dns_servers, &assignment.dns_domains),
        };
        if let Err(error) = done {
            let file = file.path.display();
            tracing::error!(code = %Code::NoPackets, %file, %error, "The resolvers of the other side are not written");
        }
    }
}

/// The network of one address.
fn alone(address: IpAddr) -> Cidr {
    let length = if address.is_ipv4() { 32 } else { 128 };
    Cidr { address, length }
}

fn list(addresses: &[IpAddr]) -> String {
    let texts = addresses.iter().map(IpAddr::to_string);
    texts.collect::<Vec<_>>().join(" ")
}

/// The resolvers of the other side in the form of resolv.conf(5). The file is removed when this is dropped.
struct DnsFile {
    path: PathBuf,
}

impl DnsFile {
    fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Replaces the file in one step.
    ///
    /// # Errors
    /// The system's.
    fn write(&self, servers: &[IpAddr], domains: &[String]) -> io::Result<()> {
        let mut text =
            "# Resolvers of the other side of a tunnel, written by muxgate.\n".to_owned();
        if !domains.is_empty() {
            text.push_str(&format!("search {}\n", domains.join(" ")));
        }
        for server in servers {
            text.push_str(&format!("nameserver {server}\n"));
        }
        let new = beside(&self.path);
        fs::write(&new, text)?;
        fs::rename(&new, &self.path)
    }

    /// # Errors
    /// The system's; that there is none is no error.
    fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

impl Drop for DnsFile {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

/// A file of the same folder.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}
