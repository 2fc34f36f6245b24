//! The NFQUEUE backend: rules that send a plan's packets to a queue, and a delay line in this
//! process that serves the queue.
//!
//! The module sets up the queue first and then the rules, and removes both. A [`Plan`] becomes an
//! [`Nfqueue`], which delays packets until it is stopped. The backend needs NET_ADMIN, `iptables`,
//! `xt_NFQUEUE` and `nfnetlink_queue`. If this process dies, the rules stay and the traffic stops
//! (see [`rules`]).

pub mod line;
pub mod message;
pub mod rules;

use std::{fs, os::unix::net::UnixStream, time::Duration};

use self::{
    line::{Counts, QueueError, Running},
    rules::Family,
};
use crate::{command::CommandError, plan::Plan};

/// The queue's number in the network namespace.
pub const QUEUE: u16 = 64003;

/// Why the backend stopped.
#[derive(Debug, thiserror::Error)]
pub enum NfqueueError {
    /// The kernel refused the queue, or the queue failed later.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The rules could not be set up or removed.
    #[error(transparent)]
    Rules(#[from] CommandError),
    /// IPv6 traffic would pass undelayed.
    #[error("{interface} has an IPv6 address and ip6tables does not work: {source}")]
    Ipv6 {
        /// The plan's interface.
        interface: String,
        /// The error of `ip6tables`.
        source: CommandError,
    },
}

/// An active delay.
#[derive(Debug)]
pub struct Nfqueue {
    line: Running,
    families: Vec<Family>,
}

impl Nfqueue {
    /// Opens the queue, then sets up the rules. New rules replace the rules of an earlier run.
    ///
    /// # Errors
    /// [`NfqueueError`]. After an error, no rules of this start remain.
    pub fn start(plan: &Plan) -> Result<Self, NfqueueError> {
        // Opens the queue before it changes rules. If another process serves the queue, opening
        // fails, and the rules of that process stay.
        let line = Running::start(*plan.impairments())?;
        let mut this = Self {
            line,
            families: Vec::new(),
        };
        match this.make_rules(plan) {
            Ok(()) => Ok(this),
            Err(error) => {
                this.remove_rules()?;
                this.line.stop()?;
                Err(error)
            }
        }
    }

    fn make_rules(&mut self, plan: &Plan) -> Result<(), NfqueueError> {
        // Lists the family before its rules exist. If a later step fails, the clean-up then removes
        // the rules of every listed family.
        self.families.push(Family::Ipv4);
        if let Err(error) = rules::apply(plan, Family::Ipv4) {
            remove_leftovers(Family::Ipv4);
            self.families.clear();
            return Err(error.into());
        }
        match rules::apply(plan, Family::Ipv6) {
            Ok(()) => self.families.push(Family::Ipv6),
            Err(source) if has_ipv6(plan.interface()) => {
                remove_leftovers(Family::Ipv6);
                let interface = plan.interface().to_owned();
                return Err(NfqueueError::Ipv6 { interface, source });
            }
            Err(_) => remove_leftovers(Family::Ipv6),
        }
        Ok(())
    }

    /// Whether IPv6 is delayed as well. If not, the interface has no IPv6 address.
    #[must_use]
    pub fn delays_ipv6(&self) -> bool {
        self.families.contains(&Family::Ipv6)
    }

    /// Sets the one-way delay of later packets.
    pub fn set_one_way_delay(&self, one_way_delay: Duration) {
        self.line.set_one_way_delay(one_way_delay);
    }

    /// A descriptor that becomes readable when the delay line has failed.
    #[must_use]
    pub fn ended(&self) -> &UnixStream {
        self.line.ended()
    }

    /// Removes the rules, releases held packets and closes the queue.
    ///
    /// # Errors
    /// If rules cannot be removed, or if the delay line had failed.
    pub fn stop(mut self) -> Result<Counts, NfqueueError> {
        let removed = self.remove_rules();
        let counts = self.line.stop()?;
        removed?;
        Ok(counts)
    }

    /// Ends after a failure of the delay line. The rules stay, so that the traffic stops.
    ///
    /// # Errors
    /// The failure of the delay line.
    pub fn abandon(self) -> Result<(), NfqueueError> {
        self.line.stop()?;
        Ok(())
    }

    fn remove_rules(&mut self) -> Result<(), CommandError> {
        let results: Vec<_> = self.families.drain(..).map(rules::remove).collect();
        results.into_iter().collect()
    }
}

/// Removes the rules of an earlier run or of a failed start. Errors of `iptables` are ignored,
/// because usually there are no rules.
pub fn remove_leftovers(family: Family) {
    if rules::remove(family).is_err() {
        // The chain can exist without the jump. In this case the transaction above fails, so the
        // chain is also removed separately.
        let _ = rules::remove_chain_command(family).run();
    }
}

/// Whether the interface has an IPv6 address of more than link scope.
fn has_ipv6(interface: &str) -> bool {
    fs::read_to_string("/proc/net/if_inet6").is_ok_and(|table| lists_ipv6(&table, interface))
}

/// `table`: lines of address, index, prefix length, scope (20 = link), flags, interface.
fn lists_ipv6(table: &str, interface: &str) -> bool {
    table.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(5) == Some(&interface) && fields.get(3) != Some(&"20")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_local_address_alone_is_no_ipv6_to_delay() {
        let table = "fe80000000000000a0b1c2fffed3e4f5 02 40 20 80     eth0\n\
                     fd000000000000000000000000000001 03 40 00 80     eth1\n";
        assert!(!lists_ipv6(table, "eth0"));
        assert!(lists_ipv6(table, "eth1"));
        assert!(!lists_ipv6("", "eth0"));
    }
}
