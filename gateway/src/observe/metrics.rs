//! The metrics page in OpenMetrics text, rendered from the status document at each scrape.

mod carriers;
mod packets;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use muxtunnel_gateway_config::status::{Status, Streams};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeMetric, text};
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
pub(crate) fn render(telemetry: Arc<Telemetry>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot {
        status: telemetry.status(),
        peers: telemetry.peers(),
        carriers_lost: telemetry.carriers_lost.get(),
        carriers_retired: telemetry.carriers_retired.get(),
        opens_retried: telemetry.opens_retried.get(),
        session_panics: telemetry.session_panics.get(),
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

/// The page while it is written.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    /// Writes a metric family: name, help text, and samples with labels.
    fn family<'a, M: EncodeMetric>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'a>, M)>,
    ) -> fmt::Result {
        let mut samples = samples.into_iter().peekable();
        let Some((_, first)) = samples.peek() else {
            return Ok(());
        };
        let kind = first.metric_type();
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, metric) in samples {
            metric.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Writes a counter without labels.
    fn counter(&mut self, name: &str, help: &str, value: impl EncodeCounterValue) -> fmt::Result {
        self.single(name, help, ConstCounter::new(value))
    }

    /// Writes a gauge without labels.
    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        self.single(name, help, ConstGauge::new(value))
    }

    fn single(&mut self, name: &str, help: &str, metric: impl EncodeMetric) -> fmt::Result {
        let kind = metric.metric_type();
        metric.encode(self.0.encode_descriptor(name, help, None, kind)?)
    }
}

/// A sample of a counter.
fn counter<'a>(labels: Labels<'a>, value: u64) -> (Labels<'a>, ConstCounter<u64>) {
    (labels, ConstCounter::new(value))
}

/// A sample of a gauge.
fn gauge<'a>(labels: Labels<'a>, value: f64) -> (Labels<'a>, ConstGauge<f64>) {
    (labels, ConstGauge::new(value))
}

/// The gauge of a condition.
fn flag(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// A counter for each entry of a table. The keys of the table are the values of `label`.
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

/// A counter for each direction.
fn directions<'a>(
    sent: u64,
    received: u64,
    labels: &[(&'a str, &'a str)],
) -> [(Labels<'a>, ConstCounter<u64>); 2] {
    [("sent", sent), ("received", received)].map(|(direction, count)| {
        let own = [("direction", direction)];
        counter([labels, &own].concat(), count)
    })
}

fn payload<'a>(
    streams: &Streams,
    labels: &[(&'a str, &'a str)],
) -> [(Labels<'a>, ConstCounter<u64>); 2] {
    directions(streams.bytes_sent, streams.bytes_received, labels)
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let page = &mut Page(encoder);
        self.encode_streams(page)?;
        self.encode_forwards(page)?;
        self.encode_listed(page)?;
        self.encode_credit(page)?;
        self.encode_splice(page)?;
        self.encode_resume(page)?;
        self.encode_packets(page)?;
        self.encode_carriers(page)?;
        self.encode_paths(page)?;
        self.encode_peers(page)?;
        self.encode_rendezvous(page)?;
        self.encode_handshakes(page)?;
        self.encode_files(page)?;
        self.encode_process(page)
    }
}

impl Snapshot {
    fn encode_streams(&self, page: &mut Page<'_>) -> fmt::Result {
        let streams = &self.status.streams;
        page.gauge("muxgate_streams_open", "Open streams", streams.open as f64)?;
        page.counter("muxgate_streams_opened", "Streams opened", streams.opened)?;
        page.family(
            "muxgate_streams_closed",
            "Streams closed, by reason",
            by("reason", &streams.closed, &[]),
        )?;
        page.family(
            "muxgate_opens_refused",
            "Opens refused or failed, by code",
            by("code", &streams.refused, &[]),
        )?;
        let help = "Opens retried on another session: the other side shut down before it accepted the open, or the first session ended before it sent the open";
        page.counter("muxgate_opens_retried", help, self.opens_retried)?;
        let help = "Payload bytes between local sockets and carriers";
        page.family("muxgate_payload_bytes", help, payload(streams, &[]))
    }

    fn encode_forwards(&self, page: &mut Page<'_>) -> fmt::Result {
        let forwards = || {
            let forwards = self.status.forwards.iter();
            forwards.map(|forward| (vec![("forward", forward.name.as_str())], &forward.streams))
        };
        page.family(
            "muxgate_forward_streams_open",
            "Open streams of a forward",
            forwards().map(|(labels, streams)| gauge(labels, streams.open as f64)),
        )?;
        page.family(
            "muxgate_forward_streams_opened",
            "Opened streams of a forward",
            forwards().map(|(labels, streams)| counter(labels, streams.opened)),
        )?;
        page.family(
            "muxgate_forward_streams_closed",
            "Closed streams of a forward, by reason",
            forwards().flat_map(|(labels, streams)| by("reason", &streams.closed, &labels)),
        )?;
        page.family(
            "muxgate_forward_opens_refused",
            "Refused and failed opens of a forward, by code",
            forwards().flat_map(|(labels, streams)| by("code", &streams.refused, &labels)),
        )?;
        page.family(
            "muxgate_forward_payload_bytes",
            "Payload bytes of a forward between clients and carriers",
            forwards().flat_map(|(labels, streams)| payload(streams, &labels)),
        )
    }

    /// The peers that an exit lists. At most `PEERS_MAX` peers have samples.
    fn encode_listed(&self, page: &mut Page<'_>) -> fmt::Result {
        let listed = || {
            let peers = self.peer_streams.iter();
            peers.map(|(identity, streams)| (vec![("peer", identity.as_str())], streams))
        };
        page.family(
            "muxgate_peer_streams_open",
            "Open streams of a peer",
            listed().map(|(labels, streams)| gauge(labels, streams.open as f64)),
        )?;
        page.family(
            "muxgate_peer_streams_opened",
            "Opened streams of a peer",
            listed().map(|(labels, streams)| counter(labels, streams.opened)),
        )?;
        page.family(
            "muxgate_peer_refused",
            "Streams and carriers of a peer that its limits refused, by code",
            listed().flat_map(|(labels, streams)| by("code", &streams.refused, &labels)),
        )?;
        page.family(
            "muxgate_peer_payload_bytes",
            "Payload bytes of a peer between local sockets and carriers",
            listed().flat_map(|(labels, streams)| payload(streams, &labels)),
        )
    }

    fn encode_rendezvous(&self, page: &mut Page<'_>) -> fmt::Result {
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
        page.family(
            "muxgate_rendezvous_leaves",
            "Connections of leaves, by state; the state meeting counts pairs of leaves",
            now.map(|(state, count)| gauge(vec![("state", state)], count as f64)),
        )?;
        let help = "Pairs of leaves that were joined";
        page.counter("muxgate_rendezvous_meetings", help, rendezvous.met)?;
        let help = "Bytes forwarded between leaves, in both directions";
        page.counter("muxgate_rendezvous_bytes", help, rendezvous.bytes)
    }

    /// Connections that have not completed their handshake.
    fn encode_handshakes(&self, page: &mut Page<'_>) -> fmt::Result {
        let Figures {
            pending,
            penalised,
            counts,
        } = self.handshakes;
        let help = "Connections that have not completed their handshake";
        page.gauge("muxgate_handshakes_pending", help, pending as f64)?;
        let help = "Connections whose handshake failed or timed out";
        page.counter("muxgate_handshakes_failed", help, counts.failed)?;
        let help =
            "Connections evicted during their handshake to free a permit for another connection";
        page.counter("muxgate_handshakes_evicted", help, counts.evicted)?;
        let help = "Connections dropped on arrival because too many connections, from their address or in total, did not authenticate";
        page.counter("muxgate_handshakes_dropped", help, counts.dropped)?;
        let help = "Addresses with recently failed handshakes";
        page.gauge("muxgate_penalised_sources", help, penalised as f64)
    }

    fn encode_credit(&self, page: &mut Page<'_>) -> fmt::Result {
        let credit = &self.status.credit;
        let help = "Number of times that a stream waited for credit";
        page.counter("muxgate_credit_waits", help, credit.waits)?;
        let help = "Time that streams waited for credit, added when a wait ends";
        page.counter("muxgate_credit_wait_seconds", help, credit.waited_seconds)
    }

    fn encode_splice(&self, page: &mut Page<'_>) -> fmt::Result {
        let splice = &self.status.splice;
        page.family(
            "muxgate_spliced_bytes",
            "Payload bytes moved between local sockets and carriers without copying",
            directions(splice.bytes_sent, splice.bytes_received, &[]),
        )?;
        let help = "Payload bytes that the gateway copied from carriers, although the amount was large enough to splice";
        let fallen_back = splice.bytes_fallen_back;
        page.counter("muxgate_splice_fallback_bytes", help, fallen_back)?;
        let help = "Number of times that no pipe was free for a splice";
        page.counter("muxgate_splice_pipes_lacking", help, splice.pipes_lacking)
    }

    fn encode_resume(&self, page: &mut Page<'_>) -> fmt::Result {
        let resume = &self.status.resume;
        let help = "Payload bytes that are retained for a retransmission";
        page.gauge("muxgate_retained_bytes", help, resume.bytes_retained as f64)?;
        let help = "Lost carriers whose session continued";
        page.counter("muxgate_carriers_survived", help, resume.carriers_survived)?;
        let help = "Payload bytes sent again because a lost carrier had not delivered them";
        page.counter("muxgate_sent_again_bytes", help, resume.bytes_sent_again)
    }

    /// The files that the gateway follows.
    fn encode_files(&self, page: &mut Page<'_>) -> fmt::Result {
        let files = self.status.files.iter().flatten();
        let samples = files.map(|file| {
            let labels = vec![("file", file.path.as_str()), ("use", file.purpose.as_str())];
            gauge(labels, flag(file.error.is_some()))
        });
        let help = "1: the newest content of a file is not in force";
        page.family("muxgate_file_rejected", help, samples)
    }

    fn encode_process(&self, page: &mut Page<'_>) -> fmt::Result {
        let status = &self.status;
        let help = "1: ready, as /readyz reports";
        page.gauge("muxgate_ready", help, flag(status.ready))?;
        let help = "1: shutting down, and not ready";
        page.gauge("muxgate_draining", help, flag(status.draining))?;
        let help =
            "1: the gateway rejected the newest configuration file, or applied only a part of it";
        let refused = flag(status.config_error.is_some());
        page.gauge("muxgate_config_refused", help, refused)?;
        let help = "Sessions that ended because of an internal error";
        page.counter("muxgate_session_panics", help, self.session_panics)?;
        let help = "Log lines dropped because the log's buffer was full";
        page.counter("muxgate_log_lines_dropped", help, self.log_lines_dropped)?;
        let process = &status.process;
        let help = "User and system CPU time";
        page.counter("process_cpu_seconds", help, process.cpu_seconds)?;
        let help = "Peak resident set";
        let max = process.max_rss_bytes as f64;
        page.gauge("process_resident_memory_max_bytes", help, max)?;
        let files = process.open_files;
        page.gauge("process_open_fds", "Open files", files.open as f64)?;
        let help = "Limit of open files (RLIMIT_NOFILE)";
        page.gauge("process_max_fds", help, files.limit as f64)?;
        let help = "Part of the limit of open files that streams can use";
        page.gauge("muxgate_stream_fds_max", help, files.for_streams as f64)
    }
}
