//! The plan of an emulation: the interface, the path and the affected packets.
//!
//! The module has [`Plan`] and its limits. Every plan is valid, so pure functions of both backends
//! derive their rules from a plan without further checks.

use std::{collections::BTreeSet, time::Duration};

use crate::impairments::{Impairments, ImpairmentsError};

/// The port on `lo` that the self-probe uses, and the number of the NFQUEUE.
pub const PROBE_PORT: u16 = muxtunnel_contract::ports::WAN_PROBE;

/// Maximum number of ports of a plan. The kernel compares each packet with every port.
pub const PORTS_MAX: usize = 128;

/// Greatest length of an interface name (`IFNAMSIZ` without the terminating zero).
const INTERFACE_BYTES_MAX: usize = 15;

/// The packets that are delayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// TCP and UDP packets from or to one of these ports.
    Ports(BTreeSet<u16>),
    /// Every IP packet, except TCP and UDP packets from or to one of these ports.
    AllExcept(BTreeSet<u16>),
}

/// A checked plan for a delay in this network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    interface: String,
    impairments: Impairments,
    scope: Scope,
}

/// Why no backend can carry out a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The impairments are invalid.
    #[error(transparent)]
    Impairments(#[from] ImpairmentsError),
    /// [`Scope::Ports`] has no port.
    #[error("no port is given: set --port or --all")]
    NoPorts,
    /// More than [`PORTS_MAX`] ports.
    #[error("{0} ports are given, at most {PORTS_MAX} are permitted")]
    TooManyPorts(usize),
    /// Port 0, or the port of the self-probe.
    #[error("port {0} is reserved: use another port")]
    ReservedPort(u16),
    /// The name is not a valid interface name.
    #[error("`{0}` is not a valid name of a network interface")]
    Interface(String),
}

impl Plan {
    /// Checks a plan. `interface`: where packets arrive (NFQUEUE) or leave (netem). `impairments`
    /// may be empty.
    ///
    /// # Errors
    /// See [`PlanError`].
    pub fn new(
        interface: impl Into<String>,
        impairments: Impairments,
        scope: Scope,
    ) -> Result<Self, PlanError> {
        let interface = interface.into();
        let usable = !interface.is_empty()
            && interface.len() <= INTERFACE_BYTES_MAX
            && !interface.starts_with('-')
            && interface.chars().all(|c| {
                c.is_ascii_graphic() && !matches!(c, '/' | ':' | '!' | '"' | '\'' | '\\' | '+')
            });
        if !usable {
            return Err(PlanError::Interface(interface));
        }
        impairments.check()?;
        let (Scope::Ports(ports) | Scope::AllExcept(ports)) = &scope;
        if ports.is_empty() && matches!(scope, Scope::Ports(_)) {
            return Err(PlanError::NoPorts);
        }
        if ports.len() > PORTS_MAX {
            return Err(PlanError::TooManyPorts(ports.len()));
        }
        if let Some(&port) = ports.iter().find(|&&port| port == 0 || port == PROBE_PORT) {
            return Err(PlanError::ReservedPort(port));
        }
        Ok(Self {
            interface,
            impairments,
            scope,
        })
    }

    /// The interface's name.
    #[must_use]
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// The delay in one direction. If both ends delay packets, the RTT grows by twice the delay.
    #[must_use]
    pub fn one_way_delay(&self) -> Duration {
        self.impairments.one_way_delay
    }

    /// The impairments of the packets.
    #[must_use]
    pub fn impairments(&self) -> &Impairments {
        &self.impairments
    }

    /// The affected packets.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }
}

/// The interface of the IPv4 default route with the lowest metric. `routes`: the text of
/// `/proc/net/route`.
#[must_use]
pub fn default_route_interface(routes: &str) -> Option<String> {
    routes
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let default = fields.get(1) == Some(&"00000000") && fields.get(7) == Some(&"00000000");
            let metric: u32 = fields.get(6)?.parse().ok()?;
            default.then(|| (metric, (*fields[0]).to_owned()))
        })
        .min()
        .map(|(_, interface)| interface)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(ports: &[u16]) -> Scope {
        Scope::Ports(ports.iter().copied().collect())
    }

    #[test]
    fn orders_outside_the_limits_are_refused() {
        let delay = Duration::from_millis(50);
        let refused = |interface: &str, delay, scope| {
            Plan::new(interface, Impairments::delay(delay), scope).unwrap_err()
        };
        assert_eq!(
            refused("eth0", Duration::from_secs(11), ports(&[1])),
            PlanError::Impairments(ImpairmentsError::TooLong(Duration::from_secs(11)))
        );
        assert_eq!(refused("eth0", delay, ports(&[])), PlanError::NoPorts);
        assert_eq!(
            refused("eth0", delay, ports(&[0])),
            PlanError::ReservedPort(0)
        );
        assert_eq!(
            refused("eth0", delay, ports(&[PROBE_PORT])),
            PlanError::ReservedPort(PROBE_PORT)
        );
        let many: Vec<u16> = (1..=129).collect();
        assert_eq!(
            refused("eth0", delay, ports(&many)),
            PlanError::TooManyPorts(129)
        );
        for name in [
            "",
            "-j",
            "eth0 -j ACCEPT",
            "a/b",
            "sixteen-letters-",
            "eth+",
        ] {
            assert_eq!(
                refused(name, delay, ports(&[1])),
                PlanError::Interface(name.to_owned())
            );
        }
    }

    #[test]
    fn all_traffic_needs_no_port() {
        assert!(
            Plan::new(
                "eth0",
                Impairments::default(),
                Scope::AllExcept(BTreeSet::new())
            )
            .is_ok()
        );
    }

    #[test]
    fn the_default_route_with_the_lowest_metric_names_the_interface() {
        let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                      wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n\
                      eth0\t00000000\t01F4F40A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                      eth0\t00F4F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        assert_eq!(default_route_interface(routes).as_deref(), Some("eth0"));
        assert_eq!(default_route_interface("Iface\tDestination\n"), None);
    }
}
