//! Checks that the tables of `docs/limits.md` have the values of the constants.
//!
//! Each entry names a row by its beginning, a value as the row shows it, and the constant that sets
//! the value. The test reads the constant from its file, so it covers private constants, too.

use crate::page::file;

const PAGE: &str = "docs/limits.md";

/// Row, value, file below `gateway/`, constant.
type Bound = (&'static str, &'static str, &'static str, &'static str);

#[rustfmt::skip]
const BOUNDS: &[Bound] = &[
    ("the process's control group", "32", "src/base/cgroup.rs", "DEPTH_MAX"),
    ("granted credit plus", "256 MiB", "config/src/lib.rs", "RECEIVE_DEFAULT"),
    ("time that a stream may hold", "60 s", "config/src/lib.rs", "STALL_SECONDS_DEFAULT"),
    ("streams per session", "4,096", "config/src/lib.rs", "STREAMS_DEFAULT"),
    ("streams per session", "16 KiB", "config/src/lib.rs", "STREAM_RECEIVE_MIN"),
    ("payload of bulk streams", "256 KiB", "proto/src/session/share.rs", "LEAST"),
    ("retained payload", "128 MiB", "config/src/lib.rs", "RETAIN_DEFAULT"),
    ("sessions of an entry's worker", "4", "src/roles/entry/exits.rs", "EXITS_MAX"),
    ("sessions of an entry's worker", "8", "src/roles/entry.rs", "SESSIONS_MAX"),
    ("answers to frames", "8,192", "proto/src/jmux.rs", "ORPHANS_MAX"),
    ("ids that wait", "65,536", "proto/src/jmux/ids.rs", "QUARANTINE_MAX"),
    ("listeners that a session", "64", "proto/src/session/listen_table.rs", "LISTENS_MAX"),
    ("carriers of an exit, all", "256", "config/src/lib.rs", "CARRIERS_DEFAULT"),
    ("carriers of an entry's session", "16", "config/src/pool.rs", "POOL_MAX"),
    ("carriers of a session, with lost", "32", "proto/src/native.rs", "CARRIERS_MAX"),
    ("dials of further carriers", "5", "src/roles/entry/carriers.rs", "DIALS_MAX"),
    ("dials of further carriers", "3 s", "src/roles/entry/carriers.rs", "FURTHER_DIAL_MAX"),
    ("connections to an exit", "256", "src/base/handshake_limiter.rs", "PERMITS_MAX"),
    ("addresses whose handshakes", "4,096", "src/base/handshake_limiter/penalties.rs", "SOURCES_MAX"),
    ("addresses whose handshakes", "15", "src/base/handshake_limiter/penalties.rs", "PENALTIES_MAX"),
    ("addresses whose handshakes", "20 s", "src/base/handshake_limiter/penalties.rs", "PENALTY"),
    ("a PROXY header in front", "64", "config/src/trusted_proxies.rs", "TRUSTED_PROXIES_MAX"),
    ("bytes read before the other", "16 KiB", "src/io/transport.rs", "HANDSHAKE_BYTES_MAX"),
    ("bytes read before the other", "5 s", "src/io/security.rs", "PROOF_MAX"),
    ("bytes read before a carrier", "5 s", "src/session/hello.rs", "HELLO_MAX"),
    ("a proxy's answer", "8 KiB", "src/net/egress/http.rs", "HEAD_BYTES_MAX"),
    ("a proxy's answer", "10 s", "src/net/egress.rs", "PROXY_TIMEOUT"),
    ("standard error of a command", "1 KiB", "src/io/transport/command.rs", "LINE_BYTES_MAX"),
    ("standard error of a command", "2 s", "src/io/transport/command.rs", "END_TIME"),
    ("encrypted bytes", "272 KiB", "src/io/transport/buffer.rs", "BUFFER_BYTES"),
    ("encrypted bytes", "4", "src/io/transport/buffer.rs", "IDLE_MAX"),
    ("files of keys", "1 MiB", "src/base/files.rs", "FILE_BYTES_MAX"),
    ("bytes queued for a carrier", "128 KiB", "src/session/driver.rs", "BESIDE_SMALL_BYTES"),
    ("bytes that the kernel has", "128 KiB", "src/session/backlog.rs", "NOT_SENT_BYTES_MIN"),
    ("bytes that the kernel has", "4 MiB", "src/session/backlog.rs", "NOT_SENT_BYTES_MAX"),
    ("clients that have not named", "1,024", "src/ingress/listener/greeting.rs", "GREETINGS_MAX"),
    ("clients that have not named", "8 KiB", "src/ingress/listener.rs", "GREETING_BYTES_MAX"),
    ("clients that have not named", "256", "src/ingress/listener/http.rs", "FIELDS_MAX"),
    ("an HTTP request", "64 KiB", "src/roles/entry/http.rs", "HEAD_BYTES_MAX"),
    ("an HTTP request", "256", "src/roles/entry/http.rs", "FIELDS_MAX"),
    ("users of a forward", "64 KiB", "src/ingress/listener/users.rs", "FILE_BYTES_MAX"),
    ("verifications of passwords", "2", "src/ingress/listener/users/verifier.rs", "VERIFICATIONS_MAX"),
    ("verifications of passwords", "64", "src/ingress/listener/users/verifier.rs", "QUEUE_MAX"),
    ("verifications of passwords", "72", "src/ingress/listener/users/hash.rs", "PASSWORD_BYTES_MAX"),
    ("bytes of a client after", "256 KiB", "src/io/local_end.rs", "GOODBYE_BYTES_MAX"),
    ("queries to name servers", "256", "src/net/dns.rs", "QUERIES_MAX"),
    ("pipes of 1 MiB", "256 KiB", "src/stream/pipe.rs", "SMALLER_BYTES"),
    ("pipes of 1 MiB", "4 MiB", "src/stream/pipe.rs", "CONTENT_BYTES_MAX"),
    ("pipes of 1 MiB", "48", "src/stream/pipe.rs", "PIPES_MAX"),
    ("pipes of 1 MiB", "32", "src/stream/pipe.rs", "SOURCE_PIPES_MAX"),
    ("pipes of 1 MiB", "32", "src/stream/pipe.rs", "SINK_PIPES_MAX"),
    ("pipes of 1 MiB", "3", "src/stream/pipe.rs", "HELD_FACTOR"),
    ("pipes of 1 MiB", "16", "src/stream/pipe.rs", "IDLE_MAX"),
    ("workers", "64", "config/src/lib.rs", "WORKERS_MAX"),
    ("workers", "4", "src/process/workers.rs", "WORKERS_WITH_LIMIT"),
    ("payload to be sent, per stream", "512 KiB", "src/session/http2.rs", "SEND_BUFFER_BYTES"),
    ("frames; header fields", "1 MiB", "src/session/http2.rs", "FRAME_BYTES_MAX"),
    ("frames; header fields", "16 KiB", "src/session/http2.rs", "HEADER_BYTES_MAX"),
    ("bytes that the gateway reads while", "256 KiB", "src/session/http2/ahead.rs", "CONTROL_MAX"),
    ("time for the peer to read", "15 s", "src/session/shell.rs", "LINGER_MAX"),
    ("connections that arrived at", "1,024", "src/session/http2/listeners.rs", "WAITING_MAX"),
    ("connections of a session of", "16", "src/session/bridge/links.rs", "LINKS_MAX"),
    ("data that a peer may send, per connection | `memory.receive` in total", "16 MiB", "src/io/quic/settings.rs", "STREAM_WINDOW_MAX"),
    ("handshakes at once", "32", "src/roles/exit/quic.rs", "UNVALIDATED_MAX"),
    ("connections of a worker", "512", "src/io/quic/listener.rs", "ENDING_MAX"),
    ("connections that wait", "1,024", "src/io/quic/listener.rs", "INCOMING_MAX"),
    ("connections that wait", "16 KiB", "src/io/quic/listener.rs", "INCOMING_BYTES"),
    ("connections that wait", "1 MiB", "src/io/quic/listener.rs", "INCOMING_BYTES_ALL"),
    ("fields of a request", "16 KiB", "src/session/http3.rs", "FIELD_BYTES_MAX"),
    ("fields of a request", "5 s", "src/session/http3/ask.rs", "FIELDS_TIME_MAX"),
    ("frames of fields", "1 MiB", "src/session/http3/frame.rs", "READING_MAX"),
    ("unidirectional streams", "8", "src/io/quic/settings.rs", "CONTROL_STREAMS_HTTP3"),
    ("payload in small frames", "1 KiB", "src/session/http3/data.rs", "COPIED_MAX"),
    ("payload that arrived and", "1 MiB", "src/io/ssh/settings.rs", "MARGIN_BYTES"),
    ("payload in flight to this side", "256 KiB", "src/io/ssh/settings.rs", "WINDOW_MIN"),
    ("payload in flight to this side", "64 MiB", "src/io/ssh/settings.rs", "WINDOW_MAX"),
    ("payload that a connection", "512 KiB", "src/io/ssh/channels.rs", "QUEUED_MAX"),
    ("answers to a peer", "4 MiB", "src/io/ssh/wire.rs", "WRITTEN_MAX"),
    ("refusals that a peer", "2,048", "src/io/ssh/channels.rs", "REFUSED_MAX"),
    ("requests of a peer", "256", "src/io/ssh/events.rs", "EVENTS_MAX"),
    ("channels that this side", "16,384", "src/io/ssh/channels.rs", "CLOSED_FIRST_MAX"),
    ("bytes, keys and refusals", "256 KiB", "src/io/ssh/wire.rs", "LOGIN_BYTES_MAX"),
    ("bytes, keys and refusals", "16", "src/io/ssh/server.rs", "OFFERS_MAX"),
    ("bytes, keys and refusals", "7", "src/io/ssh/settings.rs", "ATTEMPTS_MAX"),
    ("streams of an entry on one", "1,024", "src/session/ssh.rs", "STREAMS_MAX"),
    ("acknowledgements to be sent", "8,192", "proto/src/kcp/receiver.rs", "ACKS_MAX"),
    ("datagrams of a connection", "64", "src/io/transport/kcp/peers.rs", "INBOX_MAX"),
    ("packets that wait for", "32 MiB", "src/session/packets.rs", "QUEUES_BYTES_MAX"),
    ("packets that wait for", "8 MiB", "src/session/packets.rs", "QUEUE_BYTES_MIN"),
    ("packets from other workers", "4,096", "src/roles/network/queues.rs", "HANDED_MAX"),
    ("packets from other workers", "8 MiB", "src/roles/network/queues.rs", "HANDED_BYTES_MAX"),
    ("packets that a QUIC", "64 KiB", "src/io/quic/settings.rs", "PACKETS_UNSENT_MAX"),
    ("packets that arrived on", "2 MiB", "src/io/quic/settings.rs", "PACKETS_RECEIVED_MAX"),
    ("remembered addresses that carriers", "64", "src/roles/network/queues.rs", "DIALLED_MAX"),
    ("stored decisions on flows", "4,096", "src/roles/network/judge.rs", "VERDICTS"),
    ("registrations", "64", "src/roles/rendezvous/meeting.rs", "INVITATIONS_MAX"),
    ("registrations", "64", "src/roles/rendezvous/meeting/registrations.rs", "REGISTRATIONS_MAX"),
    ("valid tickets", "1,024", "src/roles/rendezvous/meeting.rs", "LATE_MAX"),
    ("visits", "1 MiB", "src/io/relay.rs", "PIPE_BYTES"),
    ("configuration file", "1 MiB", "src/process/reload.rs", "FILE_BYTES_MAX"),
    ("lists in the configuration", "64", "config/src/forward.rs", "FORWARDS_MAX"),
    ("lists in the configuration", "768", "config/src/policy.rs", "RULES_MAX"),
    ("lists in the configuration", "64", "config/src/policy.rs", "PROTECTED_MAX"),
    ("lists in the configuration", "8", "config/src/policy.rs", "NAT64_PREFIXES_MAX"),
    ("lists in the configuration", "16", "config/src/web_socket.rs", "ORIGINS_MAX"),
    ("lists in the configuration", "4,096", "config/src/reverse.rs", "LISTEN_RULES_MAX"),
    ("lists in the configuration", "64", "config/src/network.rs", "NETWORK_CIDRS_MAX"),
    ("lists in the configuration", "1,024", "config/src/network.rs", "NETWORK_PEERS_MAX"),
    ("connections to the admin", "64", "src/process/admin.rs", "CONNECTIONS_MAX"),
    ("connections to the admin", "16 KiB", "src/process/admin.rs", "HEAD_BYTES_MAX"),
    ("peers with metrics", "1,024", "src/base/telemetry/carriers.rs", "PEERS_MAX"),
    ("refusals in the log", "5", "src/base/telemetry.rs", "REFUSALS_LOGGED"),
    ("log lines that wait", "1 MiB", "src/base/log.rs", "PENDING_BYTES_MAX"),
    ("a client's request", "10 s", "src/ingress/listener/greeting.rs", "GREETING_TIME"),
    ("a client's request", "3 s", "src/ingress/listener/greeting.rs", "PROXY_TIME"),
    ("a client's request", "500 ms", "src/ingress/listener/greeting.rs", "SILENCE_TIME"),
    ("closing a client", "2 s", "src/io/local_end.rs", "GOODBYE_TIME"),
    ("an open without an answer", "15 s", "src/session/bridge/opening.rs", "OPEN_MAX"),
    ("dialling a target", "10 s", "src/net/dial.rs", "DIAL_TIMEOUT"),
    ("dialling a target", "250 ms", "src/net/race.rs", "ATTEMPT_DELAY"),
    ("delivery of bytes that", "10 s", "src/stream/local_stream.rs", "CUT_DELIVERY_MAX"),
    ("a stream with one half", "3600 s", "config/src/timeouts.rs", "HALF_OPEN_SECONDS_DEFAULT"),
    ("new connections without", "15 s", "src/roles/entry/exits.rs", "SESSIONLESS_MAX"),
    ("after SIGTERM", "5 s", "config/src/lib.rs", "DRAIN_ACCEPT_SECONDS_DEFAULT"),
    ("after SIGTERM", "25 s", "../contract/src/defaults.rs", "DRAIN_SECONDS"),
    ("a silent carrier, except", "15 s", "config/src/lib.rs", "LIVENESS_SECONDS_DEFAULT"),
    ("a silent carrier, except", "15 s", "src/session/driver/liveness.rs", "ANSWER_MAX"),
    ("a silent carrier with an unanswered", "5 s", "src/session/driver/liveness.rs", "SILENCE_OF_NOTE"),
    ("a client or target over TCP", "60 s", "config/src/timeouts.rs", "KEEPALIVE_SECONDS_DEFAULT"),
    ("a QUIC connection without", "4 s", "src/io/quic/settings.rs", "KEEPALIVE_EVERY"),
    ("a QUIC connection without", "14 s", "src/io/quic/settings.rs", "SILENCE_MAX"),
    ("flushing the close frame", "1 s", "src/session/shell.rs", "LAST_WORD_MAX"),
    ("the start of the interface", "5 s", "src/net/interface/queues.rs", "START_MAX"),
    ("delivery of the remaining", "3 s", "src/io/transport/kcp/driven.rs", "LINGER"),
    ("a login by SSH, at an exit", "60 s", "src/io/ssh.rs", "LOGIN_MAX"),
    ("a login by SSH, at an exit", "5 s", "src/io/ssh.rs", "NAMES_MAX"),
    ("an SSH channel that takes", "10 s", "src/io/ssh/channels.rs", "STALL_MAX"),
    ("the other end's close", "5 s", "src/session/ssh/halves.rs", "CLOSE_MAX"),
    ("dialling an exit", "3 s", "src/net/egress.rs", "DIAL_TIMEOUT"),
    ("dialling an exit", "5 s", "src/net/egress.rs", "CONNECT_TIMEOUT"),
    ("dialling an exit", "120 s", "src/net/egress.rs", "COMMAND_TIMEOUT"),
    ("the pause between dials of carriers", "5 s", "src/roles/entry/carriers.rs", "BACKOFF_MAX"),
    ("the pause between dials of carriers", "1 s", "src/roles/entry/carriers.rs", "WAITING_BACKOFF_MAX"),
    ("the pause between dials of carriers", "60 s", "src/roles/entry/carriers.rs", "MORE_AFTER"),
    ("the pause before another trial", "16 min", "src/session/carrier_autoscaler.rs", "PAUSE_MAX"),
    ("the quiet time before", "30 s", "src/session/carrier_autoscaler.rs", "QUIET"),
    ("the pause between look-ups", "1 s", "src/roles/entry/exits.rs", "DISCOVERY_PAUSE_MIN"),
    ("the pause between look-ups", "30 s", "src/roles/entry/exits.rs", "DISCOVERY_PAUSE_MAX"),
    ("the pause before an entry requests", "15 s", "src/roles/entry/reverse.rs", "ASK_AGAIN"),
    ("a meeting at a rendezvous", "5 s", "src/roles/rendezvous.rs", "MEET_MAX"),
    ("a meeting at a rendezvous", "12 s", "src/roles/rendezvous/leaf.rs", "MEET_MAX"),
    ("the delay before an entry", "10 s", "src/roles/entry/carriers.rs", "RENEWAL_JITTER"),
    ("the interval between checks", "5 s", "src/roles/trust.rs", "EXPIRY_CHECK_INTERVAL"),
];

#[test]
fn the_tables_of_bounds_and_times_have_the_values_of_the_constants() {
    let page = file(PAGE);
    let mut problems = Vec::new();
    for (row, shown, path, name) in BOUNDS {
        let begin = format!("| {row}");
        let mut rows = page.lines().filter(|line| line.starts_with(&begin));
        let Some(line) = rows.find(|line| has(line, shown)) else {
            problems.push(format!("no row {row:?} with {shown:?}"));
            continue;
        };
        let source = file(&format!("gateway/{path}"));
        let Some(value) = constant(&source, name) else {
            problems.push(format!(
                "{path}: {name} is not a number that the test can read"
            ));
            continue;
        };
        if value != number(shown) {
            problems.push(format!("{path}: {name} is {value}, but not in: {line}"));
        }
    }
    assert!(problems.is_empty(), "{PAGE}\n{}\n", problems.join("\n"));
}

/// Whether `line` has `shown` as a whole number, with the same unit.
fn has(line: &str, shown: &str) -> bool {
    line.match_indices(shown).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let mut after = line[at + shown.len()..].chars();
        let (next, second) = (after.next(), after.next());
        let is_word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '.');
        let digits_follow = next == Some(',') && second.is_some_and(|c| c.is_ascii_digit());
        let ends = next.is_none_or(|c| !c.is_ascii_alphanumeric());
        !is_word(before) && before != Some(',') && ends && !digits_follow
    })
}

/// A count, bytes or milliseconds, as the page shows them: `4,096`, `16 KiB`, `5 s`.
fn number(shown: &str) -> u64 {
    let (count, unit) = shown.split_once(' ').unwrap_or((shown, ""));
    let count: u64 = count.replace(',', "").parse().unwrap();
    count * unit_of(unit).unwrap_or_else(|| panic!("{shown}"))
}

fn unit_of(unit: &str) -> Option<u64> {
    Some(match unit {
        "" | "ms" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "s" => 1000,
        "min" => 60_000,
        _ => return None,
    })
}

/// The value of a constant: a count, bytes, or milliseconds of a time.
fn constant(source: &str, name: &str) -> Option<u64> {
    let begin = format!("const {name}: ");
    let (_, rest) = source.split_once(&begin)?;
    let (kind, rest) = rest.split_once(" = ")?;
    let (value, _) = rest.split_once(';')?;
    let call = |name: &str| {
        value
            .strip_prefix(name)?
            .strip_prefix('(')?
            .strip_suffix(')')
    };
    if let Some(seconds) = call("Duration::from_secs") {
        return Some(product(seconds)? * 1000);
    }
    if let Some(milliseconds) = call("Duration::from_millis") {
        return product(milliseconds);
    }
    let value = call(kind).unwrap_or(value);
    let factor = if name.contains("SECONDS") { 1000 } else { 1 };
    Some(product(value)? * factor)
}

/// Numbers with `*` and `<<` between them, from left to right.
fn product(text: &str) -> Option<u64> {
    let literal = |text: &str| text.trim().replace('_', "").parse::<u64>().ok();
    text.split('*').try_fold(1, |product: u64, factor| {
        let (number, shift) = factor.split_once("<<").unwrap_or((factor, "0"));
        Some(product * (literal(number)? << literal(shift)?))
    })
}

#[test]
fn values_are_read_as_they_are_written() {
    let source = "const A: usize = 16 << 10;\npub(crate) const B: Duration = Duration::from_secs(16 * 60);\n\
                  pub const C: ByteSize = ByteSize(256 << 20);\nconst D_SECONDS: u32 = 3600;\nconst E: u32 = OTHER;\n";
    let value = |name| constant(source, name);
    assert_eq!(value("A"), Some(number("16 KiB")));
    assert_eq!(value("B"), Some(number("16 min")));
    assert_eq!(value("C"), Some(number("256 MiB")));
    assert_eq!(value("D_SECONDS"), Some(number("3600 s")));
    assert_eq!((value("E"), value("F")), (None, None));
    assert!(has("| rows | at most 64, 5 s |", "64") && has("| 5 s. Then", "5 s"));
    for other in ["164", "64,000", "1,64", "0.64", "64k"] {
        assert!(!has(&format!("| {other} |"), "64"), "{other}");
    }
}
