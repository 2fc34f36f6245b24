//! Two OpenVPN processes over UDP: `tls-server` at the exit, `tls-client` at the entry.
//!
//! The settings follow the manual page openvpn(8). AES-128-GCM needs the least CPU time on
//! processors with AES instructions. The kernel sets the sizes of the socket buffers (`sndbuf 0`,
//! `rcvbuf 0`). `fast-io` omits a system call before each write. If the kernel has OpenVPN's
//! module, OpenVPN uses it.

use anyhow::Result;

use super::muxgate::{Certified, certificates};
use super::{CARRIER_PORT, Interface, Launch, Setup};
use crate::topology::Place;

const INTERFACE: Interface = Interface {
    mtu: 1500,
    queue_packets: None,
    queues: 1,
};

pub(super) fn launches(setup: &Setup<'_>) -> Result<Vec<Launch>> {
    let addresses = &setup.addresses;
    let (entry, exit) = (addresses.carrier_entry, addresses.carrier_exit);
    let keys = certificates(setup.folder)?;
    let end = |place, name: &str, role: &str, [own, other]: [_; 2], keys: &Certified| {
        let device = Interface::NAME;
        let config = format!(
            "{role}\n\
             dev {device}\n\
             dev-type tun\n\
             proto udp4\n\
             local {own}\n\
             lport {CARRIER_PORT}\n\
             remote {other} {CARRIER_PORT}\n\
             ca {}\n\
             cert {}\n\
             key {}\n\
             verify-x509-name {} name\n\
             data-ciphers AES-128-GCM\n\
             tun-mtu {}\n\
             sndbuf 0\n\
             rcvbuf 0\n\
             fast-io\n",
            keys.ca.display(),
            keys.certificate.display(),
            keys.key.display(),
            keys.peer,
            INTERFACE.mtu
        );
        let path = setup.file(&format!("openvpn-{name}.conf"), &config)?;
        let launch = Launch::new(place, &format!("openvpn --config {path}"));
        Ok::<_, anyhow::Error>(launch.making(INTERFACE))
    };
    Ok(vec![
        end(
            Place::Exit,
            "exit",
            "tls-server\ndh none",
            [exit, entry],
            &keys.accepts,
        )?,
        end(
            Place::Entry,
            "entry",
            "tls-client",
            [entry, exit],
            &keys.dials,
        )?,
    ])
}
