//! The metrics page in OpenMetrics text, rendered from the status document at each scrape.

mod carriers;
mod files;
mod packets;
mod peers;

use std::collections::BTreeMap;
use std::sync::Arc;

use muxtunnel_gateway_config::status::{Forward, Status, Streams};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::base::handshake_limiter::Figures;
use crate::base::log;
use crate::base::telemetry::{PeerFigures, Telemetry};

/// The media type of `/metrics`.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Renders the page.
///
/// # Errors
/// Writing to a `String` does not fail.
pub(crate) fn render(telemetry: Arc<Telemetry>) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot {
        status: telemetry.status(),
        peers: telemetry.peers(),
        carriers_lost: telemetry.carriers_lost(),
        carriers_retired: telemetry.carriers_retired(),
        opens_retried: telemetry.opens_retried(),
        session_panics: telemetry.session_panics(),
        handshakes: telemetry.handshakes(),
        peer_streams: telemetry.peers.streams(),
        log_lines_dropped: log::dropped(),
    }));
    let mut page = String::new();
    text::encode(&mut page, &registry)?;
    Ok(page)
}

#[derive(Debug)]
struct Snapshot {
    status: Status,
    /// The figures of each peer, by the identity that it proved.
    peers: BTreeMap<String, PeerFigures>,
    carriers_lost: u64,
    carriers_retired: u64,
    opens_retried: u64,
    session_panics: u64,
    handshakes: Figures,
    /// The streams of each listed peer, by its identity.
    peer_streams: Vec<(String, Streams)>,
    log_lines_dropped: u64,
}

type Labels<'a> = Vec<(&'a str, &'a str)>;

/// Encodes one metric family: name, help text, and samples.
fn family<'a, M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    samples: impl IntoIterator<Item = (Labels<'a>, M)>,
) -> Result<(), std::fmt::Error> {
    let mut samples = samples.into_iter().peekable();
    let Some((_, first)) = samples.peek() else {
        return Ok(());
    };
    let kind = first.metric_type();
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, metric) in samples {
        if labels.is_empty() {
            metric.encode(family)?;
            return Ok(());
        }
        metric.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn counter<'a>(labels: Labels<'a>, value: u64) -> (Labels<'a>, ConstCounter<u64>) {
    (labels, ConstCounter::new(value))
}

fn gauge<'a>(labels: Labels<'a>, value: f64) -> (Labels<'a>, ConstGauge<f64>) {
    (labels, ConstGauge::new(value))
}

/// Encodes a counter for each entry of a table. The keys of the table are the values of `label`.
fn by<'a>(
    label: &'a str,
    table: &'a BTreeMap<String, u64>,
    labels: &[(&'a str, &'a str)],
) -> Vec<(Labels<'a>, ConstCounter<u64>)> {
    let sample = |(key, value): (&'a String, &u64)| {
        let own = [(label, key.as_str())];
        counter([labels, &own].concat(), *value)
    };
    table.iter().map(sample).collect()
}

fn named(forward: &Forward) -> (Labels<'_>, &Streams) {
    (vec![("forward", forward.name.as_str())], &forward.streams)
}

fn payload<'a>(
    streams: &Streams,
    labels: &[(&'a str, &'a str)],
) -> [(Labels<'a>, ConstCounter<u64>); 2] {
    let sample = |direction, bytes| counter([labels, &[("direction", direction)]].concat(), bytes);
    [
        sample("sent", streams.bytes_sent),
        sample("received", streams.bytes_received),
    ]
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.encode_streams(&mut encoder)?;
        self.encode_forwards(&mut encoder)?;
        self.encode_listed(&mut encoder)?;
        self.encode_credit(&mut encoder)?;
        self.encode_splice(&mut encoder)?;
        self.encode_resume(&mut encoder)?;
        self.encode_packets(&mut encoder)?;
        self.encode_carriers(&mut encoder)?;
        self.encode_paths(&mut encoder)?;
        self.encode_peers(&mut encoder)?;
        self.encode_rendezvous(&mut encoder)?;
        self.encode_handshakes(&mut encoder)?;
        self.encode_files(&mut encoder)?;
        self.encode_process(&mut encoder)
    }
}

impl Snapshot {
    fn encode_streams(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let streams = &self.status.streams;
        family(
            encoder,
            ("muxgate_streams_open", "Open streams"),
            [gauge(vec![], streams.open as f64)],
        )?;
        family(
            encoder,
            ("muxgate_streams_opened", "Streams opened"),
            [counter(vec![], streams.opened)],
        )?;
        family(
            encoder,
            ("muxgate_streams_closed", "Streams closed, by reason"),
            by("reason", &streams.closed, &[]),
        )?;
        family(
            encoder,
            ("muxgate_opens_refused", "Opens refused or failed, by code"),
            by("code", &streams.refused, &[]),
        )?;
        family(
            encoder,
            (
                "muxgate_opens_retried",
                "Opens retried on another session: the other side shut down before it accepted the open, or the first session ended before it sent the open",
            ),
            [counter(vec![], self.opens_retried)],
        )?;
        family(
            encoder,
            (
                "muxgate_payload_bytes",
                "Payload bytes between local sockets and carriers",
            ),
            payload(streams, &[]),
        )
    }

    fn encode_forwards(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let forwards = || self.status.forwards.iter().map(named);
        family(
            encoder,
            ("muxgate_forward_streams_open", "Open streams of a forward"),
            forwards().map(|(labels, streams)| gauge(labels, streams.open as f64)),
        )?;
        family(
            encoder,
            (
                "muxgate_forward_streams_opened",
                "Opened streams of a forward",
            ),
            forwards().map(|(labels, streams)| counter(labels, streams.opened)),
        )?;
        family(
            encoder,
            (
                "muxgate_forward_streams_closed",
                "Closed streams of a forward, by reason",
            ),
            forwards().flat_map(|(labels, streams)| by("reason", &streams.closed, &labels)),
        )?;
        family(
            encoder,
            (
                "muxgate_forward_opens_refused",
                "Refused and failed opens of a forward, by code",
            ),
            forwards().flat_map(|(labels, streams)| by("code", &streams.refused, &labels)),
        )?;
        family(
            encoder,
            (
                "muxgate_forward_payload_bytes",
                "Payload bytes of a forward between clients and carriers",
            ),
            forwards().flat_map(|(labels, streams)| payload(streams, &labels)),
        )
    }

    fn encode_rendezvous(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        let Some(rendezvous) = &self.status.rendezvous else {
            return Ok(());
        };
        let registered = rendezvous.registered.len() as u64;
        let now = [
            ("stranger", rendezvous.strangers),
            ("registered", registered),
            ("waiting", rendezvous.waiting),
            ("meeting", rendezvous.meeting),
        ];
        family(
            encoder,
            (
                "muxgate_rendezvous_leaves",
                "Connections of leaves, by state; the state meeting counts pairs of leaves",
            ),
            now.map(|(state, count)| gauge(vec![("state", state)], count as f64)),
        )?;
        family(
            encoder,
            (
                "muxgate_rendezvous_meetings",
                "Pairs of leaves that were joined",
            ),
            [counter(vec![], rendezvous.met)],
        )?;
        family(
            encoder,
            (
                "muxgate_rendezvous_bytes",
                "Bytes forwarded between leaves, in both directions",
            ),
            [counter(vec![], rendezvous.bytes)],
        )
    }

    /// Connections that have not completed their handshake.
    fn encode_handshakes(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        let Figures {
            pending,
            penalised,
            counts,
        } = self.handshakes;
        family(
            encoder,
            (
                "muxgate_handshakes_pending",
                "Connections that have not completed their handshake",
            ),
            [gauge(vec![], pending as f64)],
        )?;
        family(
            encoder,
            (
                "muxgate_handshakes_failed",
                "Connections whose handshake failed or timed out",
            ),
            [counter(vec![], counts.failed)],
        )?;
        family(
            encoder,
            (
                "muxgate_handshakes_evicted",
                "Connections evicted during their handshake to free a permit for another connection",
            ),
            [counter(vec![], counts.evicted)],
        )?;
        family(
            encoder,
            (
                "muxgate_handshakes_dropped",
                "Connections dropped on arrival because too many connections, from their address or in total, did not authenticate",
            ),
            [counter(vec![], counts.dropped)],
        )?;
        family(
            encoder,
            (
                "muxgate_penalised_sources",
                "Addresses with recently failed handshakes",
            ),
            [gauge(vec![], penalised as f64)],
        )
    }

    fn encode_credit(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let credit = &self.status.credit;
        family(
            encoder,
            (
                "muxgate_credit_waits",
                "Number of times that a stream waited for credit",
            ),
            [counter(vec![], credit.waits)],
        )?;
        family(
            encoder,
            (
                "muxgate_credit_wait_seconds",
                "Time that streams waited for credit, added when a wait ends",
            ),
            [(vec![], ConstCounter::new(credit.waited_seconds))],
        )
    }

    fn encode_splice(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let splice = &self.status.splice;
        family(
            encoder,
            (
                "muxgate_spliced_bytes",
                "Payload bytes moved between local sockets and carriers without copying",
            ),
            [
                counter(vec![("direction", "sent")], splice.bytes_sent),
                counter(vec![("direction", "received")], splice.bytes_received),
            ],
        )?;
        family(
            encoder,
            (
                "muxgate_splice_fallback_bytes",
                "Payload bytes that the gateway copied from carriers, although the amount was large enough to splice",
            ),
            [counter(vec![], splice.bytes_fallen_back)],
        )?;
        family(
            encoder,
            (
                "muxgate_splice_pipes_lacking",
                "Number of times that no pipe was free for a splice",
            ),
            [counter(vec![], splice.pipes_lacking)],
        )
    }

    fn encode_resume(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let resume = &self.status.resume;
        family(
            encoder,
            (
                "muxgate_retained_bytes",
                "Payload bytes that are retained for a retransmission",
            ),
            [gauge(vec![], resume.bytes_retained as f64)],
        )?;
        family(
            encoder,
            (
                "muxgate_carriers_survived",
                "Lost carriers whose session continued",
            ),
            [counter(vec![], resume.carriers_survived)],
        )?;
        family(
            encoder,
            (
                "muxgate_sent_again_bytes",
                "Payload bytes sent again because a lost carrier had not delivered them",
            ),
            [counter(vec![], resume.bytes_sent_again)],
        )
    }

    fn encode_process(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let status = &self.status;
        let on = |flag: bool| f64::from(u8::from(flag));
        family(
            encoder,
            ("muxgate_ready", "1: ready, as /readyz reports"),
            [gauge(vec![], on(status.ready))],
        )?;
        family(
            encoder,
            ("muxgate_draining", "1: shutting down, and not ready"),
            [gauge(vec![], on(status.draining))],
        )?;
        family(
            encoder,
            (
                "muxgate_config_refused",
                "1: the gateway rejected the newest configuration file, or applied only a part of it",
            ),
            [gauge(vec![], on(status.config_error.is_some()))],
        )?;
        family(
            encoder,
            (
                "muxgate_session_panics",
                "Sessions that ended because of an internal error",
            ),
            [counter(vec![], self.session_panics)],
        )?;
        family(
            encoder,
            (
                "muxgate_log_lines_dropped",
                "Log lines dropped because the log's buffer was full",
            ),
            [counter(vec![], self.log_lines_dropped)],
        )?;
        family(
            encoder,
            ("process_cpu_seconds", "User and system CPU time"),
            [(vec![], ConstCounter::new(status.process.cpu_seconds))],
        )?;
        family(
            encoder,
            ("process_resident_memory_max_bytes", "Peak resident set"),
            [gauge(vec![], status.process.max_rss_bytes as f64)],
        )?;
        let files = status.process.open_files;
        family(
            encoder,
            ("process_open_fds", "Open files"),
            [gauge(vec![], files.open as f64)],
        )?;
        family(
            encoder,
            ("process_max_fds", "Limit of open files (RLIMIT_NOFILE)"),
            [gauge(vec![], files.limit as f64)],
        )?;
        family(
            encoder,
            (
                "muxgate_stream_fds_max",
                "Part of the limit of open files that streams can use",
            ),
            [gauge(vec![], files.for_streams as f64)],
        )
    }
}
