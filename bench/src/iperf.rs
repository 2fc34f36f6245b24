//! The output of `iperf -s -i 1 -f b`, line by line.
//!
//! Lines in, [`Receiver`] out: which streams came, what they received in each second. Streams are
//! added up here, not by iperf's `[SUM]` lines, which it prints only for connections that it sees as
//! one group. Pure; the recorded outputs in `bench/fixtures` are of iperf 2.1.8. Who runs iperf is
//! `agent/iperf_server.rs`, who judges the figures is `statistics.rs`.

use std::collections::{BTreeMap, VecDeque};

use muxtunnel_bench_api::agent::{Second, ServerReport};
use muxtunnel_bench_api::{CONNECTIONS_MAX, DURATION_SECONDS_MAX, TAIL_BYTES_MAX};

/// Most streams of one server that are accounted; the rest is ignored.
const STREAMS_MAX: usize = 2 * CONNECTIONS_MAX as usize;
/// Most seconds that are accounted: the longest run and two minutes of draining.
const SECONDS_MAX: u32 = DURATION_SECONDS_MAX + 120;

/// What one line says.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// The server listens.
    Listening,
    /// The server cannot listen, with iperf's words.
    BindFailed(String),
    /// A stream connected.
    Connected {
        /// iperf's number of the stream.
        stream: u32,
    },
    /// What a stream received from `start_s` to `end_s` after its start.
    Interval {
        /// iperf's number of the stream.
        stream: u32,
        /// Seconds.
        start_s: f64,
        /// Seconds.
        end_s: f64,
        /// Payload bytes.
        bytes: u64,
    },
    /// Anything else: rulers, headings, sums.
    Other,
}

/// Reads one line of a server's output.
#[must_use]
pub fn parse_line(line: &str) -> Line {
    let line = line.trim();
    if line.starts_with("Server listening on") {
        return Line::Listening;
    }
    if line.starts_with("listener bind failed") {
        return Line::BindFailed(line.to_owned());
    }
    parse_stream_line(line).unwrap_or(Line::Other)
}

/// `[  3] local ADDR port N connected with ...` or `[  3] 0.0000-1.0000 sec  692224 Bytes  ...`.
fn parse_stream_line(line: &str) -> Option<Line> {
    let (number, rest) = line.strip_prefix('[')?.split_once(']')?;
    let stream = number.trim().parse().ok()?;
    let mut words = rest.split_whitespace();
    let first = words.next()?;
    if first == "local" {
        return rest
            .contains(" connected with ")
            .then_some(Line::Connected { stream });
    }
    let (start, end) = first.split_once('-')?;
    let (unit_of_time, amount, unit) = (words.next()?, words.next()?, words.next()?);
    if unit_of_time != "sec" || unit != "Bytes" {
        return None;
    }
    // A second without data is printed as `0.000 Bytes`, every other as a whole number.
    let bytes = amount
        .parse::<f64>()
        .ok()
        .filter(|bytes| (0.0..1e18).contains(bytes))?;
    Some(Line::Interval {
        stream,
        start_s: start.parse().ok()?,
        end_s: end.parse().ok()?,
        bytes: bytes as u64,
    })
}

/// All that one iperf server has said so far.
///
/// Memory is bounded: `STREAMS_MAX` streams, `SECONDS_MAX` seconds and a tail of
/// [`TAIL_BYTES_MAX`] bytes, together under 200 KiB.
#[derive(Debug, Clone, Default)]
pub struct Receiver {
    listening: bool,
    bind_error: Option<String>,
    streams: BTreeMap<u32, Stream>,
    seconds: BTreeMap<u32, Second>,
    tail: Tail,
}

#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    seen_interval: bool,
    total: Option<u64>,
}

impl Receiver {
    /// Takes the next line of output.
    pub fn handle_line(&mut self, line: &str) {
        self.tail.push(line);
        match parse_line(line) {
            Line::Listening => self.listening = true,
            Line::BindFailed(error) => self.bind_error = Some(error),
            Line::Connected { stream } => {
                if self.streams.len() < STREAMS_MAX {
                    self.streams.entry(stream).or_default();
                }
            }
            Line::Interval {
                stream,
                start_s,
                end_s,
                bytes,
            } => {
                self.handle_interval(stream, start_s, end_s, bytes);
            }
            Line::Other => {}
        }
    }

    /// An interval that starts at 0 after others of its stream is the stream's total, its last line.
    fn handle_interval(&mut self, stream: u32, start_s: f64, end_s: f64, bytes: u64) {
        let Some(stream) = self.streams.get_mut(&stream) else {
            return;
        };
        if start_s == 0.0 && stream.seen_interval {
            stream.total = Some(bytes);
            return;
        }
        stream.seen_interval = true;
        let start_s = start_s.round().clamp(0.0, f64::from(SECONDS_MAX)) as u32;
        if start_s >= SECONDS_MAX {
            return;
        }
        let second = self.seconds.entry(start_s).or_insert(Second {
            start_s,
            end_s,
            bytes: 0,
        });
        second.end_s = second.end_s.max(end_s);
        second.bytes = second.bytes.saturating_add(bytes);
    }

    /// The server accepts connections.
    #[must_use]
    pub fn is_listening(&self) -> bool {
        self.listening
    }

    /// Why the server cannot listen.
    #[must_use]
    pub fn bind_error(&self) -> Option<&str> {
        self.bind_error.as_deref()
    }

    /// Streams that have ended.
    #[must_use]
    pub fn ended(&self) -> usize {
        self.streams
            .values()
            .filter(|stream| stream.total.is_some())
            .count()
    }

    /// The last lines, for error messages.
    #[must_use]
    pub fn tail(&self) -> String {
        self.tail.text()
    }

    /// All figures so far.
    #[must_use]
    pub fn report(&self) -> ServerReport {
        ServerReport {
            seconds: self.seconds.values().copied().collect(),
            connected: self.streams.len() as u32,
            ended: self.ended() as u32,
            bytes: self
                .streams
                .values()
                .filter_map(|stream| stream.total)
                .sum(),
            tail: self.tail(),
        }
    }
}

/// The last lines of an output, at most [`TAIL_BYTES_MAX`] bytes.
#[derive(Debug, Clone, Default)]
pub struct Tail {
    lines: VecDeque<String>,
    bytes: usize,
}

impl Tail {
    /// Adds a line and forgets the oldest ones beyond the bound.
    pub fn push(&mut self, line: &str) {
        let line: String = line.chars().take(TAIL_BYTES_MAX / 8).collect();
        self.bytes += line.len() + 1;
        self.lines.push_back(line);
        while self.bytes > TAIL_BYTES_MAX {
            let Some(oldest) = self.lines.pop_front() else {
                break;
            };
            self.bytes -= oldest.len() + 1;
        }
    }

    /// The lines, joined.
    #[must_use]
    pub fn text(&self) -> String {
        self.lines
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// Whether a line of an iperf client says that something failed. Its exit status does not: iperf
/// 2.1.8 ends with 0 when every connect was refused.
#[must_use]
pub fn is_complaint(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    [
        "failed",
        "error",
        "unknown host",
        "unreachable",
        "reset by peer",
        "broken pipe",
    ]
    .iter()
    .any(|word| line.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(output: &str) -> Receiver {
        let mut receiver = Receiver::default();
        output.lines().for_each(|line| receiver.handle_line(line));
        receiver
    }

    #[test]
    fn one_stream_gives_its_seconds_and_its_total() {
        let receiver = receive(include_str!("../fixtures/one-stream.txt"));
        let report = receiver.report();
        assert!(receiver.is_listening());
        assert_eq!((report.connected, report.ended), (1, 1));
        let starts: Vec<_> = report.seconds.iter().map(|second| second.start_s).collect();
        assert_eq!(starts, [0, 1, 2, 3]);
        // The total also has the 14 ms after the last whole second, of which iperf prints no interval.
        assert_eq!(report.bytes, 12_103_450_684);
        assert_eq!(report.seconds[3].bytes, 1_936_326_656);
    }

    #[test]
    fn streams_are_added_up_and_the_cut_last_second_keeps_its_length() {
        let report = receive(include_str!("../fixtures/two-streams-cut-second.txt")).report();
        assert_eq!((report.connected, report.ended), (2, 2));
        assert_eq!(report.seconds.len(), 3);
        let last = report.seconds[2];
        assert!(
            last.start_s == 2 && last.end_s > 2.4 && last.end_s < 2.6,
            "{last:?}"
        );
        let summed: u64 = report.seconds.iter().map(|second| second.bytes).sum();
        assert_eq!(summed, report.bytes);
    }

    #[test]
    fn ten_streams_equal_the_sums_that_iperf_prints() {
        let output = include_str!("../fixtures/ten-streams.txt");
        let report = receive(output).report();
        assert_eq!((report.connected, report.ended), (10, 10));
        let sums: Vec<u64> = output
            .lines()
            .filter_map(|line| line.strip_prefix("[SUM] "))
            .filter_map(|line| line.split_whitespace().nth(2)?.parse().ok())
            .collect();
        let seconds: Vec<u64> = report.seconds.iter().map(|second| second.bytes).collect();
        // The sum of the last second runs to the end of its last stream, beyond the second.
        assert_eq!(seconds[..2], sums[..2]);
        assert_eq!(sums.last(), Some(&report.bytes));
    }

    #[test]
    fn seconds_without_data_count_as_zero() {
        let report = receive(include_str!("../fixtures/stalled-stream.txt")).report();
        let bytes: Vec<u64> = report.seconds.iter().map(|second| second.bytes).collect();
        assert_eq!(bytes, [97_996, 30_000, 0, 0, 29_000, 98_000, 49_000]);
        assert_eq!(report.bytes, 303_996);
    }

    #[test]
    fn a_taken_port_is_an_error_with_the_words_of_iperf() {
        let receiver = receive(include_str!("../fixtures/server-port-taken.txt"));
        assert!(!receiver.is_listening());
        assert_eq!(
            receiver.bind_error(),
            Some("listener bind failed: Address already in use")
        );
    }

    #[test]
    fn a_refused_client_is_known_by_its_words() {
        let output = include_str!("../fixtures/client-refused.txt");
        assert_eq!(
            output
                .lines()
                .filter(|line| is_complaint(line))
                .collect::<Vec<_>>(),
            ["tcp connect failed: Connection refused"]
        );
    }

    #[test]
    fn a_flood_of_lines_stays_within_the_bounds() {
        let mut receiver = Receiver::default();
        for stream in 0..100_000 {
            receiver.handle_line(&format!(
                "[{stream}] local a port 1 connected with b port 2"
            ));
            receiver.handle_line(&format!(
                "[  1] {stream}.0-{}.0 sec 5 Bytes 40 bits/sec",
                stream + 1
            ));
        }
        let report = receiver.report();
        assert_eq!(report.connected as usize, STREAMS_MAX);
        assert!(report.seconds.len() <= SECONDS_MAX as usize);
        assert!(report.tail.len() <= TAIL_BYTES_MAX);
    }

    #[test]
    fn garbage_is_ignored() {
        for line in [
            "",
            "[",
            "[]",
            "[x] 1-2 sec 3 Bytes",
            "[ 1] 1-2 sec -3 Bytes",
            "[ 1] a-b sec 3 Bytes",
            "[ 1] 0-1 sec 1e30 Bytes",
        ] {
            assert_eq!(parse_line(line), Line::Other, "{line:?}");
        }
    }
}
