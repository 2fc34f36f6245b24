//! An HTTP/3 client that can send arbitrary bytes.

use std::net::SocketAddr;
use std::sync::Arc;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Connection, ConnectionError, Endpoint, SendStream};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::common::authority::Files;

const MIB: usize = 1 << 20;

/// A kind of abuse.
#[derive(Debug, Clone, Copy)]
pub enum Abuse {
    /// Requests that are cancelled at once (as CVE-2023-44487 in HTTP/2).
    RapidReset,
    /// Requests with incomplete field sections, as many as the peer allows.
    FieldsThatNeverEnd,
    /// A small field section that expands to a large section.
    FieldBomb,
    /// Unknown frames of maximum length.
    EndlessFrames,
    /// Endless frames on the control stream.
    ControlFlood,
    /// Empty DATA frames.
    EmptyData,
    /// Streams of unknown types, as many as the peer allows.
    UnknownStreams,
    /// DATA frames of one byte each, which the target does not read.
    SmallData,
}

impl Abuse {
    pub const ALL: [Self; 8] = [
        Self::RapidReset,
        Self::FieldsThatNeverEnd,
        Self::FieldBomb,
        Self::EndlessFrames,
        Self::ControlFlood,
        Self::EmptyData,
        Self::UnknownStreams,
        Self::SmallData,
    ];

    /// The expected close code. `None`: the client ends the abuse.
    pub const fn code(self) -> Option<u64> {
        match self {
            Self::ControlFlood | Self::EmptyData => Some(0x107),
            Self::RapidReset
            | Self::FieldsThatNeverEnd
            | Self::FieldBomb
            | Self::EndlessFrames
            | Self::UnknownStreams
            | Self::SmallData => None,
        }
    }
}

pub struct Peer {
    connection: Connection,
    control: SendStream,
    endpoint: Endpoint,
}

impl Peer {
    /// Connects and sends the required settings.
    pub async fn new(exit: SocketAddr, files: &Files, name: &str) -> Self {
        let read = |path| std::fs::read(path).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(&read(&files.ca)).unwrap();
        roots.add(ca).unwrap();
        let certificate = CertificateDer::from_pem_slice(&read(&files.certificate)).unwrap();
        let key = PrivateKeyDer::from_pem_slice(&read(&files.key)).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut crypto = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate], key)
            .unwrap();
        crypto.alpn_protocols = vec![b"h3".to_vec()];
        let crypto = QuicClientConfig::try_from(crypto).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(crypto));
        let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let connection = endpoint
            .connect_with(config, exit, name)
            .unwrap()
            .await
            .unwrap();
        let mut control = connection.open_uni().await.unwrap();
        // An empty SETTINGS frame.
        control.write_all(&[0, 4, 0]).await.unwrap();
        Self {
            connection,
            control,
            endpoint,
        }
    }

    /// Runs the abuse. Returns the code with which the other end closed the connection.
    pub async fn abuse(mut self, abuse: Abuse, target: SocketAddr) -> Option<u64> {
        let _streams = match abuse {
            Abuse::RapidReset => self.rapid_reset(target).await,
            Abuse::FieldsThatNeverEnd => self.endless_fields().await,
            Abuse::FieldBomb => self.field_bomb().await,
            Abuse::EndlessFrames => self.endless_frames(target).await,
            Abuse::ControlFlood => self.control_flood().await,
            Abuse::EmptyData => self.empty_data(target).await,
            Abuse::UnknownStreams => self.unknown_streams().await,
            Abuse::SmallData => self.small_data(target).await,
        };
        // If no close code is expected, the abuse ends once the client has written all data.
        let code = match abuse.code() {
            None => None,
            Some(_) => match self.connection.closed().await {
                ConnectionError::ApplicationClosed(close) => Some(close.error_code.into_inner()),
                other => panic!("{other}"),
            },
        };
        self.connection.close(0x100_u32.into(), b"");
        self.endpoint.wait_idle().await;
        code
    }

    /// Sends requests and cancels them. The exit limits their rate, and still answers the next
    /// request.
    async fn rapid_reset(&self, target: SocketAddr) -> Vec<SendStream> {
        let begun = std::time::Instant::now();
        for _ in 0..2000 {
            let (mut sender, mut receiver) = self.connection.open_bi().await.unwrap();
            sender.write_all(&connect_to(target)).await.unwrap();
            let _ = sender.reset(0x10c_u32.into());
            let _ = receiver.stop(0x10c_u32.into());
        }
        // The bound is 1,000 requests at once, and 200 requests per second.
        assert!(begun.elapsed() > std::time::Duration::from_secs(4));
        let (mut sender, mut receiver) = self.connection.open_bi().await.unwrap();
        sender.write_all(&connect_to(target)).await.unwrap();
        receiver.read_exact(&mut [0]).await.unwrap();
        vec![sender]
    }

    async fn endless_fields(&self) -> Vec<SendStream> {
        let mut streams = Vec::new();
        for _ in 0..60 {
            let (mut sender, receiver) = self.connection.open_bi().await.unwrap();
            // 16 KiB minus one byte.
            sender.write_all(&[1, 0x80, 0, 0x40, 0]).await.unwrap();
            sender.write_all(&[7; (16 << 10) - 1]).await.unwrap();
            streams.push(sender);
            drop(receiver);
        }
        streams
    }

    async fn field_bomb(&self) -> Vec<SendStream> {
        for _ in 0..200 {
            let (mut sender, mut receiver) = self.connection.open_bi().await.unwrap();
            // Each pair of bytes refers to `content-security-policy` in QPACK's static table, a
            // field of 85 bytes.
            let mut section = vec![0, 0];
            section.extend([0xff, 85 - 63].repeat(8000));
            sender.write_all(&head(1, section.len())).await.unwrap();
            sender.write_all(&section).await.unwrap();
            let answer = receiver.read_to_end(MIB).await.unwrap();
            // :status 431.
            assert!(answer.ends_with(b"431"), "{answer:x?}");
        }
        Vec::new()
    }

    async fn endless_frames(&self, target: SocketAddr) -> Vec<SendStream> {
        let (mut sender, _receiver) = self.connection.open_bi().await.unwrap();
        sender.write_all(&connect_to(target)).await.unwrap();
        sender
            .write_all(&[0x21, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])
            .await
            .unwrap();
        // The total size of the frames is more than the exit may buffer.
        for _ in 0..72 {
            sender.write_all(&vec![7; MIB]).await.unwrap();
        }
        vec![sender]
    }

    async fn control_flood(&mut self) -> Vec<SendStream> {
        // MAX_PUSH_ID, followed by an unknown frame of 16 KiB.
        let mut flood = [0xd, 1, 1].repeat(10_000);
        flood.extend(head(0x21, 16 << 10));
        flood.extend([7; 16 << 10]);
        for _ in 0..200 {
            if self.control.write_all(&flood).await.is_err() {
                break;
            }
        }
        Vec::new()
    }

    async fn empty_data(&self, target: SocketAddr) -> Vec<SendStream> {
        let (mut sender, _receiver) = self.connection.open_bi().await.unwrap();
        sender.write_all(&connect_to(target)).await.unwrap();
        let flood = [0, 0].repeat(20_000);
        for _ in 0..200 {
            if sender.write_all(&flood).await.is_err() {
                break;
            }
        }
        vec![sender]
    }

    async fn unknown_streams(&self) -> Vec<SendStream> {
        let mut streams = Vec::new();
        for _ in 0..1000 {
            let mut stream = self.connection.open_uni().await.unwrap();
            stream.write_all(&[0x21, 7, 7, 7]).await.unwrap();
            stream.stopped().await.unwrap();
            // Like other libraries, the client resets the stream when it receives STOP_SENDING.
            let _ = stream.reset(0_u32.into());
            streams.push(stream);
        }
        streams
    }

    async fn small_data(&self, target: SocketAddr) -> Vec<SendStream> {
        let (mut sender, _receiver) = self.connection.open_bi().await.unwrap();
        sender.write_all(&connect_to(target)).await.unwrap();
        let frames = [0, 1, 7].repeat(20_000);
        let flood = async {
            loop {
                sender.write_all(&frames).await.unwrap();
            }
        };
        // The flood continues until the target's buffers and the windows are full.
        let _ = tokio::time::timeout(std::time::Duration::from_secs(3), flood).await;
        vec![sender]
    }
}

/// Encodes the type and the length of a frame of less than 2^30 bytes.
fn head(kind: u8, length: usize) -> Vec<u8> {
    let mut head = vec![kind];
    head.extend((u32::try_from(length).unwrap() | 0x8000_0000).to_be_bytes());
    head
}

/// A CONNECT: `:method` from QPACK's static table, and `:authority` with its name from that table.
fn connect_to(target: SocketAddr) -> Vec<u8> {
    let authority = target.to_string();
    let mut section = vec![
        0,
        0,
        0xc0 | 15,
        0x50,
        u8::try_from(authority.len()).unwrap(),
    ];
    section.extend(authority.bytes());
    [head(1, section.len()), section].concat()
}
