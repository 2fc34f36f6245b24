//! How an entry applies the addresses and resolvers that its exit assigns. The entry accepts only
//! addresses of its own pools that its host does not use otherwise, and only resolvers on the exit's
//! side. The entry writes the addresses to the interface, and the resolvers to a file.

use std::cell::RefCell;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{self as config, Cidr, status};
use muxtunnel_proto::Assignment;

use super::addresses::{Addresses, networks};
use crate::net::interface::{self, HostAddresses};

/// The last assignment, and the configuration with which an entry applies assignments.
pub(super) struct Assigned {
    device: String,
    /// Networks of the entry's side.
    own: Vec<IpNet>,
    /// Networks from which the exit may assign addresses.
    pools: Vec<IpNet>,
    /// Networks that are routed to the interface.
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
            pools: networks(&configured.pool).collect(),
            routes: configured.exit_cidrs.clone(),
            sets_addresses: configured.set_addresses,
            dns_file: configured.dns_file.clone().map(DnsFile::at),
            current: RefCell::default(),
        }
    }

    /// Returns a guard that removes the file of resolvers when it is dropped.
    pub(super) fn guard(&self) -> RemovesDnsFile<'_> {
        RemovesDnsFile(self.dns_file.as_ref())
    }

    /// Applies an assignment. Returns the accepted part if it differs from the last accepted part.
    pub(super) fn apply(
        &self,
        assignment: &Assignment,
        addresses: &Addresses,
    ) -> Option<status::Assigned> {
        let host = HostAddresses::read(&self.device);
        let host = host
            .map_err(|error| {
                tracing::error!(code = %Code::NoPackets, %error, "Cannot check the assigned addresses");
            })
            .ok();
        let taken = self.taken(assignment, addresses, host.as_ref());
        if *self.current.borrow() == taken {
            return None;
        }
        tracing::info!(
            addresses = %list(&taken.addresses),
            dns_servers = %list(&taken.dns_servers),
            dns_domains = %taken.dns_domains.join(" "),
            "The exit has assigned addresses or DNS servers"
        );
        if taken != *assignment {
            tracing::warn!(
                code = %Code::NoPackets,
                ignored = %ignored(assignment, &taken),
                "Ignored assigned addresses or DNS servers: an address must be in network.pool (--address-pool), and must be neither an address of this host nor a gateway of its routes. A DNS server must be in exitCIDRs"
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

    /// The part of `assignment` that this entry accepts: addresses of the pools, resolvers on the
    /// exit's side, and the domains if a resolver is accepted. An address that the interface already
    /// has needs no pool. `host`: the addresses that the host uses; `None`: unknown, so the entry
    /// accepts no address.
    fn taken(
        &self,
        assignment: &Assignment,
        addresses: &Addresses,
        host: Option<&HostAddresses>,
    ) -> Assignment {
        let has = |networks: &[IpNet], address: &IpAddr| {
            networks.iter().any(|network| network.contains(address))
        };
        let is_own = |address: &IpAddr| {
            host.is_some_and(|host| {
                let is_there = host.of_device.contains(address) && has(&self.own, address);
                (is_there || has(&self.pools, address)) && !host.uses(*address)
            })
        };
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
            tracing::error!(code = %Code::NoPackets, %error, "Cannot set the assigned addresses on the interface");
        }
    }

    fn write_resolvers(&self, assignment: &Assignment) {
        let Some(file) = &self.dns_file else {
            if !assignment.dns_servers.is_empty() {
                tracing::info!(
                    command = resolvectl(&self.device, assignment),
                    "No dnsFile is configured. To use the assigned DNS servers with systemd-resolved, run this command"
                );
            }
            return;
        };
        let done = match assignment.dns_servers.is_empty() {
            true => file.remove(),
            false => file.write(&assignment.dns_servers, &assignment.dns_domains),
        };
        if let Err(error) = done {
            let file = file.path.display();
            tracing::error!(code = %Code::NoPackets, %file, %error, "Cannot write the assigned DNS servers to the file");
        }
    }
}

/// The command that makes systemd-resolved use the resolvers for names of the domains. Only the
/// arguments with `~` need quotes for a shell.
fn resolvectl(device: &str, assignment: &Assignment) -> String {
    let mut command = format!("resolvectl dns {device} {}", list(&assignment.dns_servers));
    if !assignment.dns_domains.is_empty() {
        let domains = assignment.dns_domains.iter();
        let domains: Vec<_> = domains.map(|domain| format!("'~{domain}'")).collect();
        command.push_str(&format!(
            " && resolvectl domain {device} {}",
            domains.join(" ")
        ));
    }
    command
}

/// The network of one address.
fn alone(address: IpAddr) -> Cidr {
    let length = if address.is_ipv4() { 32 } else { 128 };
    Cidr { address, length }
}

/// The addresses and resolvers of `assignment` that `taken` does not have.
fn ignored(assignment: &Assignment, taken: &Assignment) -> String {
    let addresses = assignment.addresses.iter();
    let addresses = addresses.filter(|address| !taken.addresses.contains(address));
    let servers = assignment.dns_servers.iter();
    let servers = servers.filter(|server| !taken.dns_servers.contains(server));
    list(&addresses.chain(servers).copied().collect::<Vec<_>>())
}

fn list(addresses: &[IpAddr]) -> String {
    let texts = addresses.iter().map(IpAddr::to_string);
    texts.collect::<Vec<_>>().join(" ")
}

/// Dropping this value removes the file of resolvers if it exists.
pub(super) struct RemovesDnsFile<'a>(Option<&'a DnsFile>);

impl Drop for RemovesDnsFile<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.0 {
            let _ = file.remove();
        }
    }
}

/// A file with the resolvers of the other side, in the format of resolv.conf(5).
struct DnsFile {
    path: PathBuf,
}

impl DnsFile {
    fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Replaces the file atomically.
    ///
    /// # Errors
    /// I/O errors of writing and renaming.
    fn write(&self, servers: &[IpAddr], domains: &[String]) -> io::Result<()> {
        let mut text =
            "# Resolvers of the other side of a tunnel, written by muxgate.\n".to_owned();
        if !domains.is_empty() {
            text.push_str(&format!("search {}\n", domains.join(" ")));
        }
        for server in servers {
            text.push_str(&format!("nameserver {server}\n"));
        }
        let folder = self
            .path
            .parent()
            .filter(|path| !path.as_os_str().is_empty());
        // The temporary file has a random name that must not exist, so that the write follows no
        // symbolic link in a shared folder. The file is in the same folder as `path`, so that the
        // rename is atomic.
        let mut new = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(folder.unwrap_or(Path::new(".")))?;
        new.write_all(text.as_bytes())?;
        new.persist(&self.path)?;
        Ok(())
    }

    /// Removes the file if it exists.
    ///
    /// # Errors
    /// I/O errors of removing the file.
    fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_resolvers_replaces_what_was_there_and_everybody_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = folder.path().join("elsewhere");
        fs::write(&elsewhere, "untouched").unwrap();
        let path = folder.path().join("resolv.conf");
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        let file = DnsFile::at(path.clone());
        let server = ["10.20.0.53".parse().unwrap()];
        file.write(&server, &["lab".to_owned()]).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.ends_with("search lab\nnameserver 10.20.0.53\n"),
            "{text}"
        );
        let metadata = fs::symlink_metadata(&path).unwrap();
        assert!(metadata.is_file());
        assert_eq!(metadata.permissions().mode() & 0o777, 0o644);
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "untouched");
        file.remove().unwrap();
        file.remove().unwrap();
        // Nothing temporary is left.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_command_for_systemd_resolved_asks_the_servers_for_the_domains_alone() {
        let mut assignment = Assignment {
            dns_servers: ["10.20.0.53", "fd20::53"]
                .map(|text| text.parse().unwrap())
                .into(),
            ..Assignment::default()
        };
        let command = resolvectl("mux0", &assignment);
        assert_eq!(command, "resolvectl dns mux0 10.20.0.53 fd20::53");
        assignment.dns_domains = vec!["corp.example.com".to_owned(), "lab".to_owned()];
        let command = resolvectl("mux0", &assignment);
        assert_eq!(
            command,
            "resolvectl dns mux0 10.20.0.53 fd20::53 && resolvectl domain mux0 '~corp.example.com' '~lab'"
        );
    }
}
