//! Lists the carriers of a session with `ss` in the namespace of a gateway, and cuts them. After
//! `ss -K` the kernel ends a connection at once: this end gets an error, and the other end an RST.

use std::process::Command;

use anyhow::{Context, Result};
use muxtunnel_testkit::namespace::Namespace;

/// The gateway at whose end a carrier is listed or cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The gateway that dialled the carriers.
    Entry,
    /// The gateway that accepted the carriers.
    Exit,
}

/// A carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Carrier {
    /// The entry's port, which identifies the carrier at both ends.
    pub(super) port: u16,
    /// Transferred bytes in both directions.
    pub(super) bytes: u64,
}

/// The established carriers. `port`: the exit's port for carriers.
pub(super) fn list(namespace: &Namespace, end: End, port: u16) -> Result<Vec<Carrier>> {
    let of_port = match end {
        End::Entry => format!("dport = :{port}"),
        End::Exit => format!("sport = :{port}"),
    };
    let said = ss(namespace, &format!("-HOtin state established {of_port}"))?;
    said.lines()
        .map(|line| parse(line, end).with_context(|| format!("`ss` printed {line:?}")))
        .collect()
}

/// Cuts a carrier at this end. Returns `false` if the carrier had already ended. `port`: the exit's
/// port for carriers.
///
/// # Errors
/// If `ss` fails. Without `CONFIG_INET_DIAG_DESTROY`, the kernel cuts nothing and reports no error.
pub(super) fn cut(namespace: &Namespace, end: End, port: u16, carrier: Carrier) -> Result<bool> {
    let name = carrier.port;
    let ports = match end {
        End::Entry => format!("sport = :{name} and dport = :{port}"),
        End::Exit => format!("sport = :{port} and dport = :{name}"),
    };
    let said = ss(namespace, &format!("-KHtn state established {ports}"))?;
    Ok(!said.trim().is_empty())
}

fn ss(namespace: &Namespace, line: &str) -> Result<String> {
    let said = namespace.run(Command::new("ss").args(line.split(' ')));
    said.context("`ss` (Debian: iproute2)")
}

/// `line`: the queues, the local and the peer's address, then values such as `bytes_acked:17`. A
/// connection that has not transferred bytes has no such value.
fn parse(line: &str, end: End) -> Option<Carrier> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let entrys = match end {
        End::Entry => words.get(2)?,
        End::Exit => words.get(3)?,
    };
    let fact = |name: &str| {
        let mut found = words.iter().filter_map(|word| word.strip_prefix(name));
        found.next().and_then(|value| value.parse::<u64>().ok())
    };
    let facts = ["bytes_acked:", "bytes_received:"].map(|name| fact(name).unwrap_or(0));
    Some(Carrier {
        port: entrys.rsplit_once(':')?.1.parse().ok()?,
        bytes: facts.iter().sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "0      4344   10.70.2.1:41234 10.70.2.2:6100  cubic wscale:10,10 rto:201 \
                        bytes_sent:900 bytes_retrans:1 bytes_acked:800 bytes_received:70 segs_out:5";

    #[test]
    fn a_carrier_has_the_same_name_at_both_ends() {
        let carrier = Carrier {
            port: 41234,
            bytes: 870,
        };
        assert_eq!(parse(LINE, End::Entry), Some(carrier));
        let swapped = LINE.replace(
            "10.70.2.1:41234 10.70.2.2:6100",
            "10.70.2.2:6100 10.70.2.1:41234",
        );
        assert_eq!(parse(&swapped, End::Exit), Some(carrier));
    }

    #[test]
    fn a_carrier_that_has_carried_nothing_is_one_too() {
        let carrier = Carrier {
            port: 10000,
            bytes: 0,
        };
        let line = "0 0 127.0.0.1:10000 127.0.0.1:6100 cubic rto:201";
        assert_eq!(parse(line, End::Entry), Some(carrier));
        assert_eq!(parse("0 0", End::Entry), None);
    }
}
