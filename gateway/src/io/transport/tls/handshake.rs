//! A TLS handshake over a transport.
//!
//! The handshake reads at most [`HANDSHAKE_BYTES_MAX`] from the peer, regardless of declared
//! lengths. A refusal is sent as an alert.

use std::io::Result;
use std::time::Duration;

use muxtunnel_proto::patience;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::CertificateDer;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{CommonState, ExtractedSecrets};

use super::record::{KeySchedule, TlsRecords};
use crate::io::duplex;
use crate::io::transport::{self, HANDSHAKE_BYTES_MAX, Transport, invalid};

/// Maximum time for an alert to reach the peer, on ordinary paths.
const ALERT_MAX: Duration = Duration::from_secs(1);

/// The result of a handshake.
pub(super) struct Made {
    pub(super) records: TlsRecords,
    /// The peer's certificates, with its own certificate first, if certificates were requested.
    pub(super) chain: Vec<CertificateDer<'static>>,
    /// The protocol that both sides agreed on (ALPN), if they negotiated one.
    pub(super) alpn: Option<Vec<u8>>,
    /// Sealed bytes that were read after the handshake.
    pub(super) unread: Vec<u8>,
    /// Opened bytes after the handshake. These bytes precede `unread`.
    pub(super) plain: Vec<u8>,
}

/// One side of a handshake.
pub(super) trait Hands {
    type Data;

    fn state(&self) -> &CommonState;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;

    fn finish(self)
    -> std::result::Result<(ExtractedSecrets, Box<dyn KeySchedule>), rustls::Error>;
}

/// What the handshake needs before its next step.
enum Step {
    Go,
    Send,
    Read,
}

/// The bytes that are buffered between the steps.
#[derive(Default)]
struct Bytes {
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    plain: Vec<u8>,
    read: usize,
}

pub(super) async fn run<H: Hands>(below: &dyn Transport, mut hands: H) -> Result<Made> {
    let mut bytes = Bytes::default();
    loop {
        match bytes.step(&mut hands) {
            Ok(Step::Go) => {}
            Ok(Step::Send) => bytes.send(below).await?,
            Ok(Step::Read) if !hands.state().is_handshaking() => break,
            Ok(Step::Read) => bytes.read(below).await?,
            Err(error) => {
                // Only an alert is left to send. Another step would process the same bytes again.
                while hands.state().wants_write()
                    && let Ok(Step::Go) = bytes.step(&mut hands)
                {}
                // If the alert cannot be sent, the error of the handshake remains.
                let _ = bytes.send(below).await;
                return Err(invalid(error));
            }
        }
    }
    let chain = hands.state().peer_certificates().unwrap_or_default();
    let chain = chain.iter().cloned().map(CertificateDer::into_owned);
    let chain = chain.collect();
    let alpn = hands.state().alpn_protocol().map(<[u8]>::to_vec);
    let (secrets, schedule) = hands.finish().map_err(invalid)?;
    Ok(Made {
        records: TlsRecords::new(secrets, schedule).map_err(invalid)?,
        chain,
        alpn,
        unread: bytes.incoming,
        plain: bytes.plain,
    })
}

/// Waits until the peer has read the alert with which this side has ended a handshake, and closes
/// the connection. If this side closed the connection while bytes of the peer arrive, the system
/// would reset the connection, and the reset could overtake the alert.
pub(super) async fn let_alert_arrive(below: &dyn Transport) {
    let arrive = async {
        below.finish()?;
        let (mut discarded, mut left) = ([0; 512], HANDSHAKE_BYTES_MAX);
        while left > 0 {
            match duplex::read(below, &mut discarded).await? {
                0 => break,
                length => left = left.saturating_sub(length),
            }
        }
        Result::Ok(())
    };
    let limit = patience(ALERT_MAX, below.round_trip().unwrap_or_default());
    // The refusal stands whether or not the peer learns of it.
    let _ = tokio::time::timeout(limit, arrive).await;
}

impl Bytes {
    fn step<H: Hands>(&mut self, hands: &mut H) -> std::result::Result<Step, rustls::Error> {
        let UnbufferedStatus { discard, state } = hands.process(&mut self.incoming);
        let step = match state? {
            ConnectionState::EncodeTlsData(mut data) => {
                let filled = self.outgoing.len();
                if let Err(EncodeError::InsufficientSize(needed)) = data.encode(&mut []) {
                    self.outgoing.resize(filled + needed.required_size, 0);
                    data.encode(&mut self.outgoing[filled..])
                        .map_err(|error| rustls::Error::General(error.to_string()))?;
                }
                Step::Go
            }
            ConnectionState::TransmitTlsData(data) => {
                data.done();
                Step::Send
            }
            ConnectionState::ReadTraffic(mut traffic) => {
                while let Some(record) = traffic.next_record() {
                    self.plain.extend_from_slice(record?.payload);
                }
                Step::Go
            }
            ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_) => Step::Read,
            _ => return Err(rustls::Error::HandshakeNotComplete),
        };
        self.incoming.drain(..discard);
        Ok(step)
    }

    async fn send(&mut self, below: &dyn Transport) -> Result<()> {
        duplex::write_all(below, &std::mem::take(&mut self.outgoing)).await
    }

    async fn read(&mut self, below: &dyn Transport) -> Result<()> {
        let mut bytes = [0; 4096];
        let room = bytes.len().min(HANDSHAKE_BYTES_MAX - self.read);
        if room == 0 {
            return Err(invalid(format!(
                "the TLS handshake is longer than {HANDSHAKE_BYTES_MAX} bytes"
            )));
        }
        match duplex::read(below, &mut bytes[..room]).await? {
            0 => Err(transport::closed_early()),
            length => {
                self.read += length;
                self.incoming.extend_from_slice(&bytes[..length]);
                Ok(())
            }
        }
    }
}

macro_rules! hands {
    ($connection:ty, $data:ty) => {
        impl Hands for $connection {
            type Data = $data;

            fn state(&self) -> &CommonState {
                self
            }

            fn process<'c, 'i>(
                &'c mut self,
                incoming: &'i mut [u8],
            ) -> UnbufferedStatus<'c, 'i, $data> {
                self.process_tls_records(incoming)
            }

            fn finish(
                self,
            ) -> std::result::Result<(ExtractedSecrets, Box<dyn KeySchedule>), rustls::Error> {
                let (secrets, schedule) = self.dangerous_into_kernel_connection()?;
                Ok((secrets, Box::new(schedule)))
            }
        }
    };
}

hands!(UnbufferedClientConnection, ClientConnectionData);
hands!(UnbufferedServerConnection, ServerConnectionData);
