//! Formats the status document for people: a summary, then a table of the carriers and a table of
//! the forwards.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use muxtunnel_gateway_config::Role;
use muxtunnel_gateway_config::status::{
    Assigned, Carrier, Forward, Packets, Peer, Rendezvous, Status, Streams,
};

/// Spaces between two columns.
const GAP: &str = "  ";
/// Maximum number of peers in the summary.
const PEERS_SHOWN: usize = 4;

/// The complete text.
pub(super) fn summary(status: &Status) -> String {
    let role = format!("{:?}", status.role).to_lowercase();
    let mut text = format!(
        "muxgate {}: {role}, protocol {:?}, up {}\n",
        status.version,
        status.protocol,
        span(status.process.uptime_seconds)
    );
    let mut lines = vec![("Ready", readiness(status))];
    if let Some(error) = &status.config_error {
        lines.push(("Config", error.clone()));
    }
    for key in &status.public_keys {
        lines.push(("Public key", key.clone()));
    }
    if !status.peers.is_empty() {
        lines.push(("Peers", peers(&status.peers)));
    }
    match &status.rendezvous {
        Some(rendezvous) => lines.push(("Leaves", leaves(rendezvous))),
        None => {
            lines.push(("Streams", streams(&status.streams)));
            lines.push(("Payload", payload(&status.streams)));
        }
    }
    let refused = by_name(&status.streams.refused);
    if !refused.is_empty() {
        lines.push(("Refused", refused));
    }
    if let Some(packets) = &status.packets {
        lines.extend(packet_lines(packets));
    }
    if let (Some(limit), Some(advice)) = (status.limit, &status.limit_advice) {
        lines.push(("Bottleneck", format!("{}: {advice}", limit.as_str())));
    }
    let rows = lines
        .into_iter()
        .map(|(name, value)| vec![format!("{name}:"), value]);
    text.push_str(&aligned(rows.collect()));
    for table in [carriers(&status.carriers), forwards(&status.forwards)] {
        if table.len() > 1 {
            text.push('\n');
            text.push_str(&aligned(table));
        }
    }
    for forward in &status.forwards {
        if let Some(error) = &forward.error {
            text.push_str(&format!(
                "\nForward {} does not listen: {error}\n",
                forward.name
            ));
        }
    }
    text
}

/// The number of peers, and the first of them by name or key.
fn peers(peers: &[Peer]) -> String {
    let name = |peer: &Peer| match &peer.name {
        Some(name) => name.clone(),
        None => peer.public_keys.join(", "),
    };
    let shown: Vec<_> = peers.iter().take(PEERS_SHOWN).map(name).collect();
    let more = match peers.len().saturating_sub(PEERS_SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{} ({}{more})", peers.len(), shown.join(", "))
}

/// `yes`, or `no` with the reason.
fn readiness(status: &Status) -> String {
    let reason = match status.role {
        _ if status.ready => return "yes".to_owned(),
        _ if status.draining => "the gateway is draining and will exit",
        Role::Entry if status.carriers.is_empty() => {
            "no carrier to an exit is up; the gateway's log names the reason"
        }
        Role::Entry => "a worker has no carrier yet, or does not listen yet",
        Role::Exit | Role::Rendezvous => "a worker does not listen yet",
    };
    format!("no: {reason}")
}

fn streams(streams: &Streams) -> String {
    let mut text = format!("{} open, {} opened", streams.open, streams.opened);
    let closed = by_name(&streams.closed);
    if !closed.is_empty() {
        text.push_str(&format!("; closed: {closed}"));
    }
    text
}

fn payload(streams: &Streams) -> String {
    let (sent, received) = (size(streams.bytes_sent), size(streams.bytes_received));
    format!("{sent} sent, {received} received")
}

fn leaves(rendezvous: &Rendezvous) -> String {
    let Rendezvous {
        registered,
        strangers,
        waiting,
        meeting,
        met,
        bytes,
    } = rendezvous;
    format!(
        "{} exits registered, {strangers} unauthenticated, {waiting} waiting, {meeting} pairs joined, \
         {met} pairs joined since the start, {} forwarded",
        registered.len(),
        size(*bytes)
    )
}

fn packet_lines(packets: &Packets) -> Vec<(&'static str, String)> {
    let Packets {
        sent,
        bytes_sent,
        received,
        bytes_received,
        drops,
        marks,
        handed,
        sessions,
        assigned,
    } = packets;
    let moved = format!(
        "{sent} sent ({}), {received} received ({}), {marks} marked by ECN, {sessions} sessions",
        size(*bytes_sent),
        size(*bytes_received)
    );
    let mut lines = vec![("Packets", moved)];
    if *handed > 0 {
        let handed = format!("{handed} to the session of another worker");
        lines.push(("Handed over", handed));
    }
    let drops = by_name(drops);
    if !drops.is_empty() {
        lines.push(("Dropped", drops));
    }
    if let Some(assigned) = assigned {
        lines.extend(assigned_lines(assigned));
    }
    lines
}

/// The addresses, DNS servers and DNS domains that the exit has assigned, each with a label. Omits
/// empty lists.
fn assigned_lines(assigned: &Assigned) -> impl Iterator<Item = (&'static str, String)> {
    let Assigned {
        addresses,
        dns_servers,
        dns_domains,
    } = assigned;
    let words = |addresses: &[IpAddr]| addresses.iter().map(IpAddr::to_string).collect();
    let lists: [(_, Vec<String>); 3] = [
        ("Addresses", words(addresses)),
        ("DNS servers", words(dns_servers)),
        ("DNS domains", dns_domains.clone()),
    ];
    let lists = lists.into_iter().filter(|(_, words)| !words.is_empty());
    lists.map(|(name, words)| (name, words.join(" ")))
}

/// The counts above 0, as `NAME COUNT, NAME COUNT`.
fn by_name(counts: &BTreeMap<String, u64>) -> String {
    let counts = counts.iter().filter(|(_, count)| **count > 0);
    let counts = counts.map(|(name, count)| format!("{name} {count}"));
    counts.collect::<Vec<_>>().join(", ")
}

fn carriers(carriers: &[Carrier]) -> Vec<Vec<String>> {
    let row = |carrier: &Carrier| {
        let rtt = match carrier.rtt_milliseconds {
            rtt if rtt > 0.0 => format!("{rtt:.1} ms"),
            _ => "-".to_owned(),
        };
        vec![
            carrier.peer.clone(),
            carrier.transport.to_string(),
            span(carrier.uptime_seconds),
            rtt,
            carrier.streams.to_string(),
            size(carrier.bytes_sent),
            size(carrier.bytes_received),
            carrier.limit.map_or("-", |limit| limit.as_str()).to_owned(),
        ]
    };
    let head = "CARRIER TRANSPORT UP RTT STREAMS SENT RECEIVED BOTTLENECK";
    table(head, carriers.iter().map(row))
}

fn forwards(forwards: &[Forward]) -> Vec<Vec<String>> {
    let row = |forward: &Forward| {
        vec![
            forward.name.clone(),
            forward.listen.clone(),
            forward.target.clone(),
            forward.streams.open.to_string(),
            forward.streams.opened.to_string(),
            size(forward.streams.bytes_sent),
            size(forward.streams.bytes_received),
        ]
    };
    let head = "FORWARD LISTEN TARGET OPEN OPENED SENT RECEIVED";
    table(head, forwards.iter().map(row))
}

fn table(head: &str, rows: impl Iterator<Item = Vec<String>>) -> Vec<Vec<String>> {
    let head = head.split(' ').map(str::to_owned).collect();
    std::iter::once(head).chain(rows).collect()
}

/// The rows as lines. Each column is as wide as its longest cell.
fn aligned(rows: Vec<Vec<String>>) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in &rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: Vec<String>| {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join(GAP);
        format!("{}\n", line.trim_end())
    };
    rows.into_iter().map(line).collect()
}

/// A number of bytes with a binary unit.
fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = UNITS.into_iter().find(|(_, shift)| bytes >> shift > 0);
    match unit {
        Some((name, shift)) => format!("{:.1} {name}", bytes as f64 / f64::from(shift).exp2()),
        None => format!("{bytes} B"),
    }
}

/// A time in its two largest units.
fn span(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds)
        .unwrap_or_default()
        .as_secs();
    let (days, hours, minutes, seconds) = (
        whole / 86_400,
        whole / 3_600 % 24,
        whole / 60 % 60,
        whole % 60,
    );
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{seconds}s"),
        (0, ..) => format!("{hours}h{minutes}m"),
        _ => format!("{days}d{hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_a_unit_that_fits() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536 << 10, "1.5 MiB"),
            (5 << 30, "5.0 GiB"),
            (3 << 40, "3.0 TiB"),
        ] {
            assert_eq!(size(bytes), expected);
        }
        for (seconds, expected) in [
            (0.4, "0s"),
            (59.9, "59s"),
            (61.0, "1m1s"),
            (7_260.0, "2h1m"),
            (180_000.0, "2d2h"),
        ] {
            assert_eq!(span(seconds), expected);
        }
    }

    /// The document of an entry with one carrier; `more` contains further fields.
    fn entry(more: &str) -> Status {
        let text = format!(
            r#"{{"version": "1.2.3", "role": "Entry", "protocol": "Native", "configHash": "x", "ready": false,
            "draining": false, "carriers": [], "streams": {{"open": 2, "opened": 9, "closed": {{"completed": 6, "denied": 0,
            "reset": 1}}, "refused": {{"MT0201": 3}}, "bytesSent": 2048, "bytesReceived": 7}}, "sysctls": {{}},
            "process": {{"cpuSeconds": 1, "maxRssBytes": 1, "uptimeSeconds": 3700}} {more}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn the_summary_has_what_is_known_and_nothing_else() {
        let expected = "\
muxgate 1.2.3: entry, protocol Native, up 1h1m
Ready:    no: no carrier to an exit is up; the gateway's log names the reason
Streams:  2 open, 9 opened; closed: completed 6, reset 1
Payload:  2.0 KiB sent, 7 B received
Refused:  MT0201 3
";
        assert_eq!(summary(&entry("")), expected);
    }

    #[test]
    fn packets_and_their_drops_are_shown_where_there_is_a_network() {
        let packets = r#", "packets": {"sent": 5, "bytesSent": 6000, "received": 4, "bytesReceived": 80,
            "drops": {"not_allowed": 2, "too_large": 1}, "marks": 3, "handed": 2, "sessions": 1,
            "assigned": {"addresses": ["10.72.0.55", "fd72::37"], "dnsServers": ["10.96.0.10"]}}"#;
        let text = summary(&entry(packets));
        let moved =
            "Packets:      5 sent (5.9 KiB), 4 received (80 B), 3 marked by ECN, 1 sessions\n";
        assert!(text.contains(moved), "{text}");
        for (name, value) in [
            ("Handed over", "2 to the session of another worker"),
            ("Dropped", "not_allowed 2, too_large 1"),
            ("Addresses", "10.72.0.55 fd72::37"),
            ("DNS servers", "10.96.0.10"),
        ] {
            let line = format!("{:14}{value}\n", format!("{name}:"));
            assert!(text.contains(&line), "{line:?} in {text}");
        }
        assert!(!text.contains("DNS domains"), "{text}");
    }

    #[test]
    fn a_gateway_that_is_not_ready_says_why() {
        let mut status = entry("");
        status.role = Role::Exit;
        assert_eq!(readiness(&status), "no: a worker does not listen yet");
        status.draining = true;
        assert_eq!(
            readiness(&status),
            "no: the gateway is draining and will exit"
        );
        status.ready = true;
        assert_eq!(readiness(&status), "yes");
    }
}
