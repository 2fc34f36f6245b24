//! WAN emulation: makes the path that a tunnel's `wan` asks for, and proves it.
//!
//! Owns the two ways to emulate a path in one network namespace, kernel netem ([`tc`]) and a delay
//! line behind an NFQUEUE rule ([`nfqueue`]), the choice between them ([`wan`]), the probe that
//! every start has to pass ([`probe`]) and the report of what was made ([`report`]). In comes a
//! [`plan::Plan`]; out come rules in the kernel, a report, or a refusal with its code.
//! Must not let a packet of the plan pass undelayed once a delay was reported: when in doubt the
//! traffic stops. Knows nothing of tunnels and Kubernetes. Read `docs/wan-emulation.md`, then
//! [`delay_line`], the pure core, then [`wan`].

pub mod command;
pub mod delay_line;
pub mod duration;
pub mod impairments;
pub mod nfqueue;
pub mod plan;
pub mod probe;
pub mod report;
pub mod tc;
pub mod wan;
