//! The output of `iperf -s -i 1 -f b`, with or without `-u`, line by line.
//!
//! The module turns lines into a [`Receiver`]: the streams, and the bytes that they received in
//! each second. It sums the streams itself, because iperf prints `[SUM]` lines only for connections
//! of one group. Pure. The recorded outputs in `bench/fixtures` are from iperf 2.1.8.
//! `agent/iperf_server.rs` runs iperf, and `statistics.rs` judges the figures.

use std::collections::{BTreeMap, VecDeque};

use muxtunnel_bench_api::agent::{Datagrams, Second, ServerReport};
use muxtunnel_bench_api::{CONNECTIONS_MAX, DURATION_SECONDS_MAX, TAIL_BYTES_MAX};

/// Maximum number of streams of one server. Further streams are ignored.
const STREAMS_MAX: usize = 2 * CONNECTIONS_MAX as usize;
/// Maximum number of counted seconds: the longest run and two minutes of draining.
const SECONDS_MAX: u32 = DURATION_SECONDS_MAX + 120;

/// The content of one line.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// The server listens.
    Listening,
    /// The server cannot listen. The text is iperf's message.
    BindFailed(String),
    /// A stream connected.
    Connected {
        /// iperf's number of the stream.
        stream: u32,
    },
    /// The bytes that a stream received from `start_s` to `end_s` after its start.
    Interval {
        /// iperf's number of the stream.
        stream: u32,
        /// Start of the interval, seconds after the stream's start.
        start_s: f64,
        /// End of the interval, seconds after the stream's start.
        end_s: f64,
        /// Received payload in bytes.
        bytes: u64,
        /// Lost datagrams and all datagrams; `None` for TCP.
        datagrams: Option<(u64, u64)>,
    },
    /// The datagrams of a stream that arrived out of order within an interval.
    OutOfOrder {
        /// iperf's number of the stream.
        stream: u32,
        /// Start of the interval, seconds after the stream's start.
        start_s: f64,
        /// Number of datagrams out of order.
        count: u64,
    },
    /// Any other line: rulers, headings, sums.
    Other,
}

/// Parses one line of a server's output.
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

/// Parses a line about one stream: `[  3] local ADDR port N connected with ...`, or
/// `[  3] 0.0000-1.0000 sec  692224 Bytes  5537792 bits/sec`, with datagrams followed by
/// `0.257 ms 1/447 (0.22%)`, or `[  3] 0.0000-1.0000 sec  4 datagrams received out-of-order`.
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
    if unit_of_time != "sec" {
        return None;
    }
    let start_s = start.parse().ok()?;
    if unit == "datagrams" {
        let count = amount.parse().ok()?;
        return rest.ends_with(" out-of-order").then_some(Line::OutOfOrder {
            stream,
            start_s,
            count,
        });
    }
    if unit != "Bytes" {
        return None;
    }
    // iperf prints a second without data as `0.000 Bytes`, and other seconds as whole numbers.
    let bytes = amount
        .parse::<f64>()
        .ok()
        .filter(|bytes| (0.0..1e18).contains(bytes))?;
    Some(Line::Interval {
        stream,
        start_s,
        end_s: end.parse().ok()?,
        bytes: bytes as u64,
        datagrams: words.find_map(parse_datagrams),
    })
}

/// `1/447`: lost datagrams and all datagrams.
fn parse_datagrams(word: &str) -> Option<(u64, u64)> {
    let (lost, sent) = word.split_once('/')?;
    Some((lost.parse().ok()?, sent.parse().ok()?))
}

/// The output of one iperf server so far.
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
    datagrams: Option<Datagrams>,
}

impl Receiver {
    /// Processes the next line of output.
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
                datagrams,
            } => {
                let is_total = self.handle_interval(stream, start_s, end_s, bytes);
                if let (true, Some((lost, sent))) = (is_total, datagrams) {
                    self.handle_datagrams(stream, sent, lost, end_s);
                }
            }
            Line::OutOfOrder {
                stream,
                start_s,
                count,
            } => self.handle_out_of_order(stream, start_s, count),
            Line::Other => {}
        }
    }

    /// An interval that starts at 0 and follows other intervals of its stream is the stream's
    /// total. Returns whether this interval is a total.
    fn handle_interval(&mut self, stream: u32, start_s: f64, end_s: f64, bytes: u64) -> bool {
        let Some(stream) = self.streams.get_mut(&stream) else {
            return false;
        };
        if start_s == 0.0 && stream.seen_interval {
            stream.total = Some(bytes);
            return true;
        }
        stream.seen_interval = true;
        let start_s = start_s.round().clamp(0.0, f64::from(SECONDS_MAX)) as u32;
        if start_s >= SECONDS_MAX {
            return false;
        }
        let second = self.seconds.entry(start_s).or_insert(Second {
            start_s,
            end_s,
            bytes: 0,
        });
        second.end_s = second.end_s.max(end_s);
        second.bytes = second.bytes.saturating_add(bytes);
        false
    }

    fn handle_datagrams(&mut self, stream: u32, sent: u64, lost: u64, seconds: f64) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.datagrams = Some(Datagrams {
                sent,
                lost,
                out_of_order: 0,
                seconds,
            });
        }
    }

    /// Handles a line about datagrams out of order. The line after a stream's total has the count
    /// of the whole stream.
    fn handle_out_of_order(&mut self, stream: u32, start_s: f64, count: u64) {
        let stream = self.streams.get_mut(&stream);
        let datagrams = stream.and_then(|stream| stream.datagrams.as_mut());
        if let Some(datagrams) = datagrams.filter(|_| start_s == 0.0) {
            datagrams.out_of_order = count;
        }
    }

    /// iperf has reported that it listens.
    #[must_use]
    pub fn is_listening(&self) -> bool {
        self.listening
    }

    /// The reason why the server cannot listen, if any.
    #[must_use]
    pub fn bind_error(&self) -> Option<&str> {
        self.bind_error.as_deref()
    }

    /// Number of streams that have ended.
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
            datagrams: self.datagrams(),
            tail: self.tail(),
        }
    }

    fn datagrams(&self) -> Option<Datagrams> {
        let streams = self.streams.values();
        let datagrams = streams.filter_map(|stream| stream.datagrams);
        datagrams.reduce(|sum, more| Datagrams {
            sent: sum.sent.saturating_add(more.sent),
            lost: sum.lost.saturating_add(more.lost),
            out_of_order: sum.out_of_order.saturating_add(more.out_of_order),
            seconds: sum.seconds.max(more.seconds),
        })
    }
}

/// The last lines of an output, at most [`TAIL_BYTES_MAX`] bytes.
#[derive(Debug, Clone, Default)]
pub struct Tail {
    lines: VecDeque<String>,
    bytes: usize,
}

impl Tail {
    /// Adds a line and drops the oldest lines beyond the bound.
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

    /// The last lines as one text.
    #[must_use]
    pub fn text(&self) -> String {
        self.lines
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// Whether a line of an iperf client reports a failure. The exit status does not show failures:
/// iperf 2.1.8 ends with 0 even if every connection was refused.
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
        // The total includes the last 14 ms, for which iperf prints no interval.
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
        // The last second is not compared: iperf's sum for it also contains the time beyond the
        // second, up to the end of the last stream.
        assert_eq!(seconds[..2], sums[..2]);
        assert_eq!(sums.last(), Some(&report.bytes));
    }

    #[test]
    fn datagrams_are_those_of_the_whole_stream() {
        let report = receive(include_str!("../fixtures/datagrams.txt")).report();
        assert_eq!((report.connected, report.ended), (1, 1));
        assert_eq!(report.bytes, 1_251_600);
        let expected = Datagrams {
            sent: 896,
            lost: 2,
            out_of_order: 8,
            seconds: 2.0026,
        };
        assert_eq!(report.datagrams, Some(expected));
        let tcp = receive(include_str!("../fixtures/one-stream.txt")).report();
        assert_eq!(tcp.datagrams, None);
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
            "[ 1] 0-1 sec 4 datagrams sent",
            "[ 1] 0-1 sec -4 datagrams received out-of-order",
        ] {
            assert_eq!(parse_line(line), Line::Other, "{line:?}");
        }
    }
}
