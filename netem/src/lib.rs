//! WAN emulation: emulates the path that a tunnel's `wan` describes, and verifies it.
//!
//! Two backends emulate a path in one network namespace: kernel netem ([`tc`]) and a delay line
//! behind an NFQUEUE rule ([`nfqueue`]). [`wan`] selects a backend, [`probe`] verifies it at every
//! start, and [`report`] writes the result. Input: a [`plan::Plan`]. Output: rules in the kernel, a
//! report, or a refusal with its code. After the report of a delay, no packet of the plan may pass
//! undelayed. So on any failure, the traffic stops. The crate does not know tunnels or Kubernetes.
//! Read `docs/wan-emulation.md` first, then the pure core [`delay_line`], then [`wan`].

pub mod cli;
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
