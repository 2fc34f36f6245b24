//! `muxgate check` without a file: what the kernel's buffers of this host permit, and the sysctls
//! that raise them.

use std::time::Duration;

use anyhow::{Context, bail};
use muxtunnel_contract::sysctls::{QUIC_BUFFER_BYTES, RMEM_MAX, WAN, WMEM_MAX};

use crate::base::socket_buffers::{self, Buffers};
use crate::base::tcp_buffers::{TcpBuffers, rate};

/// The round trips of the table, in milliseconds.
const ROUND_TRIPS_MS: [u64; 3] = [10, 50, 100];

/// Describes the buffers of this host.
///
/// # Errors
/// The description, if buffers are smaller than those of the profile WAN or than those that gateways
/// request for UDP, or a sentence if they cannot be determined.
pub(super) fn check() -> anyhow::Result<String> {
    let tcp = TcpBuffers::of_host();
    let tcp = tcp.context("cannot read net.ipv4.tcp_rmem and net.ipv4.tcp_wmem in /proc/sys")?;
    let udp = socket_buffers::max().context("cannot create a UDP socket")?;
    let (text, lines) = described(tcp, udp);
    if lines.is_empty() {
        return Ok(text);
    }
    bail!(
        "small buffers\n{text}\n\nTo raise them, run these commands as root. To keep the values, write the\n\
         lines without `sysctl -w` into /etc/sysctl.d/90-muxgate.conf:\n{}",
        lines.join("\n")
    )
}

/// The table, and the commands that raise what is too small.
fn described(tcp: TcpBuffers, udp: Buffers) -> (String, Vec<String>) {
    let mut table = vec![
        "A carrier over TCP, by round trip:".to_owned(),
        row(
            "",
            "largest buffer",
            ROUND_TRIPS_MS.map(|ms| format!("{ms} ms")),
        ),
    ];
    let mut lines = Vec::new();
    let wan = TcpBuffers::of_wan();
    for (what, name, own, wanted) in [
        ("sends", "net.ipv4.tcp_wmem", tcp.send, wan.send),
        ("receives", "net.ipv4.tcp_rmem", tcp.receive, wan.receive),
    ] {
        let rates = ROUND_TRIPS_MS.map(|ms| rate(own, Duration::from_millis(ms)));
        table.push(row(what, &bytes(own), rates));
        let value = WAN
            .iter()
            .find(|(of, _)| *of == name)
            .filter(|_| own < wanted);
        lines.extend(value.map(|(name, value)| format!("  sysctl -w {name}='{value}'")));
    }
    let Buffers { receive, send } = udp;
    let (receive, send) = (receive as u64, send as u64);
    table.push(format!(
        "A carrier over UDP (QUIC, HTTP3, KCP): receive buffer {}, send buffer {}",
        bytes(receive),
        bytes(send)
    ));
    for (name, own) in [(RMEM_MAX, receive), (WMEM_MAX, send)] {
        let is_small = own < QUIC_BUFFER_BYTES as u64;
        lines.extend(is_small.then(|| format!("  sysctl -w {name}={QUIC_BUFFER_BYTES}")));
    }
    (table.join("\n"), lines)
}

fn row(what: &str, buffer: &str, rates: [String; 3]) -> String {
    let [short, middle, long] = rates;
    format!("  {what:<9}{buffer:>15}{short:>13}{middle:>13}{long:>13}")
}

fn bytes(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        bytes => format!("{:.0} KiB", bytes as f64 / 1024.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_rates_and_the_lines_have_what_is_too_small() {
        let tcp = TcpBuffers {
            receive: 128 << 20,
            send: 4 << 20,
        };
        let udp = Buffers {
            receive: 212_992,
            send: QUIC_BUFFER_BYTES,
        };
        let (table, lines) = described(tcp, udp);
        assert_eq!(
            table,
            "\
A carrier over TCP, by round trip:
            largest buffer        10 ms        50 ms       100 ms
  sends            4.0 MiB   2.3 Gbit/s   470 Mbit/s   235 Mbit/s
  receives       128.0 MiB  75.2 Gbit/s  15.0 Gbit/s   7.5 Gbit/s
A carrier over UDP (QUIC, HTTP3, KCP): receive buffer 208 KiB, send buffer 8.0 MiB"
        );
        assert_eq!(
            lines,
            [
                "  sysctl -w net.ipv4.tcp_wmem='4096 65536 67108864'",
                "  sysctl -w net.core.rmem_max=8388608",
            ]
        );
    }
}
