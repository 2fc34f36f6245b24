//! HAProxy, two in a row, in TCP mode: spliced, one thread a process, pipes of 1 MiB.
//!
//! Settings by its configuration manual: `option splice-request` and `splice-response` (section 4.2),
//! `nbthread` and `tune.pipesize` (section 3). `option splice-auto` did not splice a byte of bulk (2.6.12:
//! strace shows `recvfrom` and `sendto` alone) and gave a third of the rate; the default of a thread a
//! processor was no faster than one.

use anyhow::Result;

use super::{Launch, Service, Setup, entry_at, target_at};
use crate::topology::{Place, at};

/// The exit's listeners are a thousand ports above the entry's.
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
