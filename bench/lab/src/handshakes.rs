//! `muxlab handshakes`: the handshakes per second of an exit with public keys and with certificates,
//! and the bytes of a handshake.
//!
//! The clients are threads of this process. Their first message has the fields of an entry's first
//! message, so the bytes are those of a carrier. A handshake ends when the exit has verified the
//! client and has closed the connection. The exit has one worker, so its rate is that of one
//! processor. Both kinds take turns in each round.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::Read,
    net::{Shutdown, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use muxbench::statistics::spread;
use quinn::rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, DistinguishedName,
    Error, RootCertStore, SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys, Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{
        WebPkiSupportedAlgorithms,
        aws_lc_rs::{default_provider, sign::any_eddsa_type},
        verify_tls13_signature_with_raw_key,
    },
    pki_types::{
        CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
        UnixTime, pem::PemObject,
    },
    sign::CertifiedKey,
    version::TLS13,
};
use serde_json::Value;

use crate::{
    bench::Bench,
    cli::RunArgs,
    plan::USUAL,
    run::prepare,
    scenario::Scenario,
    system::{Muxgate, System},
    topology::{Place, Topology},
};

/// The systems whose exits are compared.
const SYSTEMS: [(System, &str); 2] = [
    (System::MuxgateTls, "certificates"),
    (System::MuxgateKeys, "public keys"),
];
/// Clients at the same time, so that the exit never waits for a client.
const CLIENTS: usize = 2;
/// Time-out of a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// The name of the native protocol in a handshake.
const ALPN: &[u8] = b"muxtunnel/1";
/// The length of the name, without its header, by which an entry tells the exit which key it
/// accepts. An exit with one key does not use the value.
const HINT_BYTES: usize = 44;

/// Flags of `muxlab handshakes`.
#[derive(Debug, Args)]
pub(crate) struct HandshakesArgs {
    /// Number of rounds. Each round measures both kinds once.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Measured seconds of each kind in a round.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// The muxgate to measure [default: `muxgate` next to this program].
    #[arg(long)]
    muxgate: Option<PathBuf>,
}

/// Measures both kinds, and prints a line for each.
///
/// # Errors
/// If a gateway does not start, or a handshake fails.
pub(crate) fn run(args: &HandshakesArgs, run: &RunArgs) -> Result<()> {
    let (_, logs) = prepare(run)?;
    let mut programs = run.programs()?;
    let muxgate = args.muxgate.as_ref().unwrap_or(&programs.muxgate);
    programs.muxgate =
        fs::canonicalize(muxgate).with_context(|| format!("cannot find {}", muxgate.display()))?;
    let bench = Bench::build(Topology::Loopback, USUAL, &programs, &logs)?;
    let mut measured: BTreeMap<System, Vec<Measured>> = BTreeMap::new();
    for round in 1..=args.rounds {
        for (system, _) in SYSTEMS {
            let folder = bench.folder(system);
            fs::create_dir_all(&folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
            let muxgate = Muxgate {
                program: &programs.muxgate,
                files: None,
            };
            let limits = Scenario::Opens.limits();
            let _running = system.start(&bench.network, muxgate, limits, &folder)?;
            let client = Client::new(&folder)?;
            let seconds = Duration::from_secs(args.seconds.into());
            let clients = bench.network.namespace(Place::Client);
            let one = clients.enter(|| client.repeat(seconds))?;
            let one = one.with_context(|| format!("round {round}, {}", system.name()))?;
            measured.entry(system).or_default().push(one);
        }
    }
    println!("{}", table(&measured, args));
    Ok(())
}

/// The result of one kind in one round.
#[derive(Debug, Clone, Copy)]
struct Measured {
    per_second: f64,
    sent: f64,
    received: f64,
}

/// Bytes of a handshake in both directions.
#[derive(Debug, Clone, Copy)]
struct Bytes {
    sent: usize,
    received: usize,
}

fn table(measured: &BTreeMap<System, Vec<Measured>>, args: &HandshakesArgs) -> String {
    let mut text = format!(
        "mutual TLS 1.3 handshakes with an exit of one worker, {CLIENTS} clients on the same machine; {} rounds of {} s \
         for each kind, in turns; median (minimum..maximum)\n{:<14}{:>28}{:>28}{:>28}\n",
        args.rounds, args.seconds, "", "handshakes/s", "bytes to the exit", "bytes from the exit",
    );
    for (system, name) in SYSTEMS {
        let rounds = measured.get(&system).map_or(&[][..], Vec::as_slice);
        let figure = |of: fn(&Measured) -> f64| {
            let figures: Vec<f64> = rounds.iter().map(of).collect();
            spread(&figures).map_or_else(String::new, |spread| {
                let (median, min, max) = (spread.median, spread.min, spread.max);
                format!("{median:.0} ({min:.0}..{max:.0})")
            })
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{name:<14}{:>28}{:>28}{:>28}",
            figure(|one| one.per_second),
            figure(|one| one.sent),
            figure(|one| one.received)
        );
    }
    text
}

/// What a client needs for a handshake with an exit.
struct Client {
    exit: SocketAddr,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
}

impl Client {
    /// Reads the file of the system's entry in `folder`.
    fn new(folder: &Path) -> Result<Self> {
        let entry = fs::read_to_string(folder.join("muxgate-entry.yaml"))?;
        let entry: Value = serde_json::from_str(&entry)?;
        let exit = &entry["connect"][0];
        let address = exit["address"].as_str().context("an address")?;
        let security = &entry["security"];
        // An entry sends the name in the certificate, and no name with public keys and an address.
        let (config, name) = match exit["certificateNames"][0].as_str() {
            Some(name) => (with_certificate(security)?, name),
            None => (with_key(security)?, "0.0.0.0"),
        };
        Ok(Self {
            exit: address.parse()?,
            name: ServerName::try_from(name.to_owned())?,
            config: Arc::new(config),
        })
    }

    /// Repeats the handshake for `time` with all clients.
    fn repeat(&self, time: Duration) -> Result<Measured> {
        let start = Instant::now();
        let repeat = || {
            let mut all = Vec::new();
            while start.elapsed() < time {
                all.push(self.shake_hands()?);
            }
            Ok::<_, anyhow::Error>(all)
        };
        let clients: Result<Vec<_>> = thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(repeat)).collect();
            let join = |client: thread::ScopedJoinHandle<'_, _>| {
                client.join().map_err(|_| anyhow!("a client panicked"))?
            };
            clients.into_iter().map(join).collect()
        });
        let elapsed = start.elapsed().as_secs_f64();
        let all: Vec<Bytes> = clients?.into_iter().flatten().collect();
        let median = |of: fn(&Bytes) -> usize| {
            let bytes: Vec<f64> = all.iter().map(|bytes| of(bytes) as f64).collect();
            Ok::<_, anyhow::Error>(spread(&bytes).context("no handshake")?.median)
        };
        Ok(Measured {
            per_second: all.len() as f64 / elapsed,
            sent: median(|bytes| bytes.sent)?,
            received: median(|bytes| bytes.received)?,
        })
    }

    /// Connects, performs a handshake, and waits until the exit has closed the connection.
    fn shake_hands(&self) -> Result<Bytes> {
        let mut tcp = TcpStream::connect_timeout(&self.exit, PATIENCE)?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(PATIENCE))?;
        let mut tls = ClientConnection::new(Arc::clone(&self.config), self.name.clone())?;
        let mut bytes = Bytes {
            sent: 0,
            received: 0,
        };
        while tls.is_handshaking() || tls.wants_write() {
            while tls.wants_write() {
                bytes.sent += tls.write_tls(&mut tcp)?;
            }
            if tls.is_handshaking() {
                let count = tls.read_tls(&mut tcp)?;
                ensure!(count > 0, "the exit has closed the connection");
                bytes.received += count;
                tls.process_new_packets()?;
            }
        }
        tcp.shutdown(Shutdown::Write)?;
        // A refusal would be an alert, and then an error here.
        let mut rest = Vec::new();
        tcp.read_to_end(&mut rest)?;
        let mut rest = rest.as_slice();
        while !rest.is_empty() {
            tls.read_tls(&mut rest)?;
            tls.process_new_packets()?;
        }
        Ok(bytes)
    }
}

fn file<'a>(security: &'a Value, field: &str) -> Result<&'a str> {
    let file = security.pointer(field).and_then(Value::as_str);
    file.with_context(|| format!("the entry's file has no security{field}"))
}

fn with_certificate(security: &Value) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(file(security, "/ca")?)?)?;
    let own = CertificateDer::from_pem_file(file(security, "/certificate")?)?;
    let key = PrivateKeyDer::from_pem_file(file(security, "/key")?)?;
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![own], key)?;
    Ok(as_a_carrier(config))
}

fn with_key(security: &Value) -> Result<ClientConfig> {
    let provider = Arc::new(default_provider());
    let key = PrivatePkcs8KeyDer::from_pem_file(file(security, "/privateKeyFiles/0")?)?;
    let key = any_eddsa_type(&key)?;
    let public = key.public_key().context("the key has no public key")?;
    let own = CertifiedKey::new(vec![public.to_vec().into()], key);
    let verifier = RawKeys {
        algorithms: provider.signature_verification_algorithms,
        hints: vec![DistinguishedName::in_sequence(&[0; HINT_BYTES])],
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::new(
            own,
        ))));
    Ok(as_a_carrier(config))
}

fn as_a_carrier(mut config: ClientConfig) -> ClientConfig {
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config
}

/// Verifies the signature of an exit. The lab has started the exit, so it accepts any key.
#[derive(Debug)]
struct RawKeys {
    algorithms: WebPkiSupportedAlgorithms,
    hints: Vec<DistinguishedName>,
}

impl ServerCertVerifier for RawKeys {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(CertificateError::BadSignature.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        Some(&self.hints)
    }
}
