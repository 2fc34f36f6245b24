//! The kernel's buffers of TCP sockets in this network namespace, and the rate that they permit.
//!
//! A carrier over TCP has at most one send buffer of this gateway, or one receive buffer of the
//! peer, in flight in each round trip.

use std::time::Duration;

use muxtunnel_contract::sysctls::WAN;

use crate::base::sysctls;

/// Share of a buffer that holds payload in flight. The rest is the kernel's overhead. Measured with
/// a round trip of 100 ms: 0.69 of a send buffer of 4 MiB, 0.84 of one of 64 MiB, and 0.77 of a
/// receive buffer of 6 MiB (docs/tuning.md).
const PAYLOAD_SHARE: f64 = 0.7;
/// The round trip of [`TcpBuffers::report`].
const LONG_ROUND_TRIP: Duration = Duration::from_millis(100);

/// The largest size of a socket's buffers, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TcpBuffers {
    pub(crate) receive: u64,
    pub(crate) send: u64,
}

impl TcpBuffers {
    /// The buffers of this network namespace. `None` if the kernel does not show them.
    pub(crate) fn of_host() -> Option<Self> {
        let values = sysctls::effective();
        let (receive, send) = (
            values.get("net.ipv4.tcp_rmem")?,
            values.get("net.ipv4.tcp_wmem")?,
        );
        let (receive, send) = (largest(receive)?, largest(send)?);
        Some(Self { receive, send })
    }

    /// The buffers of the sysctl profile WAN.
    pub(crate) fn of_wan() -> Self {
        let [receive, send] = ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"].map(|wanted| {
            let mut all = WAN.iter();
            let own = all.find(|(name, _)| *name == wanted);
            own.and_then(|(_, value)| largest(value)).unwrap_or(0)
        });
        Self { receive, send }
    }

    /// Logs what the buffers permit.
    pub(crate) fn report(self) {
        let Self { receive, send } = self;
        let [sends, receives] = [send, receive].map(|bytes| rate(bytes, LONG_ROUND_TRIP));
        tracing::info!(
            send,
            receive,
            "With a round trip of 100 ms, the TCP buffers of this host let a carrier send about {sends} and receive \
             about {receives}; `muxgate check` prints how to raise them"
        );
    }
}

/// The rate that a buffer of `bytes` permits, as text.
pub(crate) fn rate(bytes: u64, round_trip: Duration) -> String {
    let mbit_s = bytes as f64 * PAYLOAD_SHARE * 8.0 / round_trip.as_secs_f64() / 1e6;
    match mbit_s {
        mbit_s if mbit_s >= 1000.0 => format!("{:.1} Gbit/s", mbit_s / 1000.0),
        mbit_s => format!("{mbit_s:.0} Mbit/s"),
    }
}

/// The largest size in the value of tcp_rmem or tcp_wmem: `MIN DEFAULT MAX`.
fn largest(value: &str) -> Option<u64> {
    value.split_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_from_the_buffer_and_the_round_trip() {
        let rate = |bytes, ms| rate(bytes, Duration::from_millis(ms));
        assert_eq!(rate(4 << 20, 100), "235 Mbit/s");
        assert_eq!(rate(4 << 20, 10), "2.3 Gbit/s");
        assert_eq!(rate(64 << 20, 100), "3.8 Gbit/s");
    }

    #[test]
    fn the_kernel_shows_its_buffers_and_wan_has_larger_ones() {
        let host = TcpBuffers::of_host().unwrap();
        assert!(host.receive >= 4096 && host.send >= 4096, "{host:?}");
        let (receive, send) = (128 << 20, 64 << 20);
        assert_eq!(TcpBuffers::of_wan(), TcpBuffers { receive, send });
        assert_eq!(largest("4096 131072"), None);
    }
}
