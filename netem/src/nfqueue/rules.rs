//! The iptables rules that send a plan's packets to the queue. Pure functions return their text,
//! and `iptables-restore` applies it in one transaction.
//!
//! The module changes only the chain [`CHAIN`] in the mangle table and the jump to it from
//! PREROUTING. The rules hold packets only on arrival. Packets that are held on departure would
//! count against the sending socket (TCP small queues), and the rate of the flow would fall below 1
//! Mbit/s. The rules do not use `--queue-bypass`. So if the delay line dies, packets stop and do
//! not pass undelayed.

use super::QUEUE;
use crate::{
    command::{Command, CommandError},
    plan::{PROBE_PORT, Plan, Scope},
};

/// The chain with all rules. Every start empties it, and the end removes it.
pub const CHAIN: &str = "MUXWAN";

/// Time that `iptables` waits for the lock of the tables, in seconds.
const LOCK_SECONDS: u32 = 5;

/// The IP version of a set of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4, with `iptables`.
    Ipv4,
    /// IPv6, with `ip6tables`.
    Ipv6,
}

impl Family {
    fn program(self) -> &'static str {
        match self {
            Self::Ipv4 => "iptables",
            Self::Ipv6 => "ip6tables",
        }
    }
}

/// Creates the chain and fills it. A stale chain is emptied first.
#[must_use]
pub fn fill_command(plan: &Plan, family: Family) -> Command {
    restore(family).with_input(fill_text(plan, family))
}

/// The text that [`fill_command`] passes to `iptables-restore`.
#[must_use]
pub fn fill_text(plan: &Plan, family: Family) -> String {
    // A declared chain is created, or emptied if it exists.
    let mut lines = vec!["*mangle".to_owned(), format!(":{CHAIN} - [0:0]")];
    let to_queue = format!("-j NFQUEUE --queue-num {QUEUE}");
    if family == Family::Ipv4 {
        lines.push(format!(
            "-A {CHAIN} -i lo -p udp -m udp --dport {PROBE_PORT} {to_queue}"
        ));
    }
    lines.push(format!("-A {CHAIN} ! -i {} -j RETURN", plan.interface()));
    let (ports, target) = match plan.scope() {
        Scope::Ports(ports) => (ports, to_queue.as_str()),
        Scope::AllExcept(ports) => (ports, "-j RETURN"),
    };
    for port in ports {
        for protocol in ["tcp", "udp"] {
            for side in ["dport", "sport"] {
                lines.push(format!(
                    "-A {CHAIN} -p {protocol} -m {protocol} --{side} {port} {target}"
                ));
            }
        }
    }
    if matches!(plan.scope(), Scope::AllExcept(_)) {
        lines.push(format!("-A {CHAIN} {to_queue}"));
    }
    lines.push("COMMIT\n".to_owned());
    lines.join("\n")
}

/// Removes the jump, the rules and the chain. Fails if one of them does not exist.
#[must_use]
pub fn remove_command(family: Family) -> Command {
    let text = format!("*mangle\n-D PREROUTING -j {CHAIN}\n-F {CHAIN}\n-X {CHAIN}\nCOMMIT\n");
    restore(family).with_input(text)
}

/// Removes the rules and the chain. Fails if a jump to the chain exists.
#[must_use]
pub fn remove_chain_command(family: Family) -> Command {
    restore(family).with_input(format!("*mangle\n-F {CHAIN}\n-X {CHAIN}\nCOMMIT\n"))
}

fn restore(family: Family) -> Command {
    Command::new(&format!(
        "{}-restore --noflush --wait {LOCK_SECONDS}",
        family.program()
    ))
}

fn jump(family: Family, action: &str) -> Command {
    Command::new(&format!(
        "{} --wait {LOCK_SECONDS} -t mangle -{action} PREROUTING -j {CHAIN}",
        family.program()
    ))
}

/// Applies a plan's rules, which replace the rules of an earlier run.
///
/// # Errors
/// The error of `iptables`.
pub fn apply(plan: &Plan, family: Family) -> Result<(), CommandError> {
    fill_command(plan, family).run()?;
    if jump(family, "C").run().is_err() {
        jump(family, "A").run()?;
    }
    Ok(())
}

/// Removes the rules.
///
/// # Errors
/// The error of `iptables`. The function also fails if there are no rules to remove.
pub fn remove(family: Family) -> Result<(), CommandError> {
    remove_command(family).run().map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::impairments::Impairments;
    use std::time::Duration;

    fn plan(scope: Scope) -> Plan {
        Plan::new("eth0", Impairments::delay(Duration::from_millis(50)), scope).unwrap()
    }

    #[test]
    fn listed_ports_are_matched_on_arrival_in_both_directions_for_tcp_and_udp() {
        let plan = plan(Scope::Ports([64000, 5001].into()));
        assert_eq!(
            fill_text(&plan, Family::Ipv4),
            "*mangle\n\
             :MUXWAN - [0:0]\n\
             -A MUXWAN -i lo -p udp -m udp --dport 64003 -j NFQUEUE --queue-num 64003\n\
             -A MUXWAN ! -i eth0 -j RETURN\n\
             -A MUXWAN -p tcp -m tcp --dport 5001 -j NFQUEUE --queue-num 64003\n\
             -A MUXWAN -p tcp -m tcp --sport 5001 -j NFQUEUE --queue-num 64003\n\
             -A MUXWAN -p udp -m udp --dport 5001 -j NFQUEUE --queue-num 64003\n\
             -A MUXWAN -p udp -m udp --sport 5001 -j NFQUEUE --queue-num 64003\n\
             -A MUXWAN -p tcp -m tcp --dport 64000 -j NFQUEUE --queue-num 64003\n\
             -A MUXWAN -p tcp -m tcp --sport 64000 -j NFQUEUE --queue-num 64003\n\
             -A MUXWAN -p udp -m udp --dport 64000 -j NFQUEUE --queue-num 64003\n\
             -A MUXWAN -p udp -m udp --sport 64000 -j NFQUEUE --queue-num 64003\n\
             COMMIT\n"
        );
    }

    #[test]
    fn all_traffic_but_the_spared_ports_goes_to_the_queue() {
        let plan = plan(Scope::AllExcept([64001].into()));
        assert_eq!(
            fill_text(&plan, Family::Ipv6),
            "*mangle\n\
             :MUXWAN - [0:0]\n\
             -A MUXWAN ! -i eth0 -j RETURN\n\
             -A MUXWAN -p tcp -m tcp --dport 64001 -j RETURN\n\
             -A MUXWAN -p tcp -m tcp --sport 64001 -j RETURN\n\
             -A MUXWAN -p udp -m udp --dport 64001 -j RETURN\n\
             -A MUXWAN -p udp -m udp --sport 64001 -j RETURN\n\
             -A MUXWAN -j NFQUEUE --queue-num 64003\n\
             COMMIT\n"
        );
    }

    #[test]
    fn the_commands_leave_other_rules_alone() {
        let plan = plan(Scope::Ports([1].into()));
        assert_eq!(
            fill_command(&plan, Family::Ipv4).to_string(),
            "iptables-restore --noflush --wait 5"
        );
        assert_eq!(
            remove_command(Family::Ipv6).to_string(),
            "ip6tables-restore --noflush --wait 5"
        );
        assert_eq!(
            jump(Family::Ipv4, "C").to_string(),
            "iptables --wait 5 -t mangle -C PREROUTING -j MUXWAN"
        );
    }

    #[test]
    fn no_rule_lets_packets_bypass_a_dead_delay_line() {
        for scope in [Scope::Ports([1].into()), Scope::AllExcept([1].into())] {
            assert!(!fill_text(&plan(scope), Family::Ipv4).contains("bypass"));
        }
    }
}
