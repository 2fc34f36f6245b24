//! Two HAProxy processes in a row, in TCP mode: they splice, with one thread per process and pipes
//! of 1 MiB.
//!
//! The settings follow HAProxy's configuration manual: `option splice-request` and
//! `splice-response` (section 4.2), `nbthread` and `tune.pipesize` (section 3). With `option
//! splice-auto`, HAProxy 2.6.12 did not splice bulk (strace shows only `recvfrom` and `sendto`).
//! Its rate was a third of the rate with `splice-request` and `splice-response`. With its default
//! of one thread per processor, HAProxy was not faster than with one thread.

use anyhow::Result;

use super::{Launch, Service, Setup, entry_at, target_at};
use crate::topology::{Place, at};

/// The exit listens on the entry's ports plus this offset.
const EXIT_OFFSET: u16 = 1000;

const COMMON: &str = "\
global
  nbthread 1
  maxconn 4000
  tune.pipesize 1048576
defaults
  mode tcp
  maxconn 4000
  option splice-request
  option splice-response
  timeout connect 10s
  timeout client 1h
  timeout server 1h
";

pub(super) fn launches(setup: &Setup<'_>) -> Result<Vec<Launch>> {
    let addresses = &setup.addresses;
    let middle = |service: Service| at(addresses.carrier_exit, service.entry_port() + EXIT_OFFSET);
    let hop = |place, name: &str, listen: &dyn Fn(Service) -> [String; 2]| {
        let sections = Service::ALL.map(|service| {
            let [from, to] = listen(service);
            let name = service.name();
            format!("listen {name}\n  bind {from}\n  server {name} {to}\n")
        });
        let path = setup.file(name, &(COMMON.to_owned() + &sections.concat()))?;
        Ok::<_, anyhow::Error>(Launch::new(place, &format!("haproxy -db -f {path}")))
    };
    let exit = hop(Place::Exit, "haproxy-exit.cfg", &|service| {
        [middle(service), target_at(addresses.target, service)]
    })?;
    let entry = hop(Place::Entry, "haproxy-entry.cfg", &|service| {
        [entry_at(addresses.entry, service), middle(service)]
    })?;
    let last = Service::Iperf3.entry_port();
    Ok(vec![
        exit.listening(last + EXIT_OFFSET),
        entry.listening(last),
    ])
}
