//! TLS 1.3 with a certificate only on the accepting side, as on a web server. The dialling side
//! proves no identity.

use std::io::Result;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use muxtunnel_gateway_config::ServerTls as Configured;
use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig, version};

use super::{Inside, ResetSecret, Servers, for_quic, handshake, own, provider, roots, sealed};
use crate::base::files::Unusable;
use crate::io::proof::Proof;
use crate::io::transport::{Part, Transport, invalid};

/// The configuration of one side.
#[derive(Debug)]
pub(crate) enum ServerTls {
    Server(Servers),
    Client {
        config: Arc<ClientConfig>,
        /// The required name of the peer, regardless of the dialled host.
        name: Option<String>,
    },
}

impl ServerTls {
    /// Reads and checks the files, or the system's authorities.
    ///
    /// # Errors
    /// [`Unusable`]: a file cannot be used.
    pub(crate) fn load(config: &Configured) -> std::result::Result<Self, Unusable> {
        match (&config.certificate, &config.key) {
            (Some(certificate), Some(key)) => Self::server(certificate, key),
            _ => Self::client(config),
        }
    }

    fn server(certificate: &Path, key: &Path) -> std::result::Result<Self, Unusable> {
        let wrong = |error: rustls::Error| Unusable::new(key, error.to_string());
        let (own, reset_secret) = own(certificate, key)?;
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13])
            .map_err(wrong)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
        server.send_tls13_tickets = 0;
        server.enable_secret_extraction = true;
        Ok(Self::Server(Servers::new(server, reset_secret)))
    }

    fn client(config: &Configured) -> std::result::Result<Self, Unusable> {
        let (from, roots) = match &config.ca {
            Some(ca) => (ca.as_path(), roots(ca)?),
            None => system_roots()?,
        };
        Ok(Self::Client {
            config: client_with(from, roots)?,
            name: config.server_name.clone(),
        })
    }

    /// Performs the handshake over `below`, and negotiates the protocol inside. The dialling side
    /// verifies that the certificate is for the configured name, by default for the dialled host.
    ///
    /// # Errors
    /// The handshake failed, the name is not valid, or the credentials are for the other side.
    pub(crate) async fn secure(
        &self,
        below: Box<dyn Transport>,
        part: Part<'_>,
        inside: Inside,
    ) -> Result<(Box<dyn Transport>, Inside)> {
        match (self, part) {
            (Self::Server(servers), Part::Accepts) => {
                let connection = UnbufferedServerConnection::new(servers.of(inside));
                let made = handshake::run(&*below, connection.map_err(invalid)?).await?;
                let agreed = inside.agreed(made.alpn.as_deref());
                Ok((sealed(below, made, None), agreed))
            }
            (Self::Client { config, name }, Part::Dials(to)) => {
                let name = name.as_deref().unwrap_or(to.host);
                let asked = ServerName::try_from(name.to_owned()).map_err(|_| {
                    invalid(format!("{name:?} is not a valid name for a certificate"))
                })?;
                let config = Arc::clone(config);
                let connection =
                    UnbufferedClientConnection::new_with_alpn(config, asked, inside.alpn());
                let made = handshake::run(&*below, connection.map_err(invalid)?).await?;
                let proof = Proof::of(name.to_owned());
                Ok((sealed(below, made, Some(proof)), inside))
            }
            _ => Err(other_side()),
        }
    }
}

impl ServerTls {
    /// The QUIC configuration of the side that dials `host`, and the name to request.
    ///
    /// # Errors
    /// The credentials are for the accepting side.
    pub(crate) fn quic_client(&self, inside: Inside, host: &str) -> Result<(ClientConfig, String)> {
        match self {
            Self::Client { config, name } => {
                let name = name.as_deref().unwrap_or(host);
                Ok((for_quic(config, inside), name.to_owned()))
            }
            Self::Server(_) => Err(other_side()),
        }
    }

    /// The QUIC configuration of the accepting side.
    ///
    /// # Errors
    /// The credentials are for the dialling side.
    pub(crate) fn quic_server(&self, inside: Inside) -> Result<Arc<ServerConfig>> {
        match self {
            Self::Server(servers) => Ok(servers.of(inside)),
            Self::Client { .. } => Err(other_side()),
        }
    }

    /// The secret of QUIC's stateless resets.
    ///
    /// # Errors
    /// The credentials are for the dialling side.
    pub(crate) fn reset_secret(&self) -> Result<&ResetSecret> {
        match self {
            Self::Server(servers) => Ok(&servers.reset_secret),
            Self::Client { .. } => Err(other_side()),
        }
    }
}

/// A client that accepts certificates of `roots`, which come `from` there.
fn client_with(
    from: &Path,
    roots: RootCertStore,
) -> std::result::Result<Arc<ClientConfig>, Unusable> {
    let wrong = |error: rustls::Error| Unusable::new(from, error.to_string());
    let mut client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(wrong)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.resumption = Resumption::disabled();
    client.enable_secret_extraction = true;
    Ok(Arc::new(client))
}

/// The client of [`to_proxy`]. The system's certificates are read when a carrier needs them first.
static TO_PROXIES: OnceLock<Arc<ClientConfig>> = OnceLock::new();

/// TLS to a proxy that ends TLS of WebSocket connections, verified by the system's certificates.
/// `name`: the required name in the proxy's certificate. The proxy is no peer, so the transport has no
/// proof of identity.
///
/// # Errors
/// The system's certificates cannot be used, or the handshake failed.
pub(crate) async fn to_proxy(below: Box<dyn Transport>, name: &str) -> Result<Box<dyn Transport>> {
    let unusable = |error: Unusable| invalid(error.to_string());
    let config = match TO_PROXIES.get() {
        Some(config) => Arc::clone(config),
        None => {
            let (from, roots) = system_roots().map_err(unusable)?;
            let config = client_with(from, roots).map_err(unusable)?;
            Arc::clone(TO_PROXIES.get_or_init(|| config))
        }
    };
    let asked = ServerName::try_from(name.to_owned())
        .map_err(|_| invalid(format!("{name:?} is not a valid name for a certificate")))?;
    let alpn = Inside::WebSocket.alpn();
    let connection = UnbufferedClientConnection::new_with_alpn(config, asked, alpn);
    let made = handshake::run(&*below, connection.map_err(invalid)?).await;
    let made = made.map_err(|error| {
        let text = format!("TLS to the proxy {name} (webSocket.scheme HTTPS): {error}");
        std::io::Error::new(error.kind(), text)
    })?;
    Ok(sealed(below, made, None))
}

fn other_side() -> std::io::Error {
    invalid("the credentials are for the other side")
}

/// The system's authorities and their source, as far as the source is known.
fn system_roots() -> std::result::Result<(&'static Path, RootCertStore), Unusable> {
    let from = Path::new("the system's certificates");
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(ToString::to_string);
        let why = why.unwrap_or_else(|| "no certificate was found".to_owned());
        let problem = format!("{why}: install ca-certificates, or set security.ca (--tls-ca)");
        return Err(Unusable::new(from, problem));
    }
    Ok((from, roots))
}

#[cfg(test)]
mod tests {
    use muxtunnel_testkit::socket::pair;

    use super::*;
    use crate::io::transport::tls::tests::issued;
    use crate::io::transport::{Tcp, To};

    /// The result of a dial, in which a server has a certificate for `own` and a client dials
    /// `host`. Each end returns the identity of its peer.
    async fn met(
        own: &str,
        host: &str,
        name: Option<&str>,
        same_ca: bool,
    ) -> (Result<Option<String>>, Result<Option<String>>) {
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key, ca) = issued(dir.path(), own);
        let other = tempfile::tempdir().unwrap();
        let (_, _, other_ca) = issued(other.path(), own);
        let none = Configured {
            certificate: None,
            key: None,
            allow_anonymous: false,
            ca: None,
            server_name: None,
        };
        let server = ServerTls::load(&Configured {
            certificate: Some(certificate),
            key: Some(key),
            allow_anonymous: true,
            ..none.clone()
        });
        let client = ServerTls::load(&Configured {
            ca: Some(if same_ca { ca } else { other_ca }),
            server_name: name.map(str::to_owned),
            ..none
        });
        let (near, far) = pair().await;
        let (client, server) = (client.unwrap(), server.unwrap());
        let identity = |made: Result<(Box<dyn Transport>, _)>| {
            made.map(|(made, _)| made.identity().map(str::to_owned))
        };
        let to = To::exit(host);
        let (near, far) = tokio::join!(
            client.secure(Tcp::boxed(near), Part::Dials(to), Inside::Carrier),
            server.secure(Tcp::boxed(far), Part::Accepts, Inside::Carrier)
        );
        (identity(near), identity(far))
    }

    #[tokio::test]
    async fn the_entry_knows_the_exit_by_the_name_that_it_dialled_and_the_exit_knows_nobody() {
        let (near, far) = met("exit.example.com", "exit.example.com", None, true).await;
        assert_eq!(near.unwrap().as_deref(), Some("exit.example.com"));
        assert_eq!(far.unwrap(), None);
        let (near, _) = met(
            "exit.example.com",
            "10.0.0.1",
            Some("exit.example.com"),
            true,
        )
        .await;
        assert_eq!(near.unwrap().as_deref(), Some("exit.example.com"));
        let (near, _) = met("10.0.0.1", "10.0.0.1", None, true).await;
        assert_eq!(near.unwrap().as_deref(), Some("10.0.0.1"));
    }

    #[tokio::test]
    async fn another_name_or_another_authority_is_refused_on_both_sides() {
        for (own, host, name, same_ca) in [
            ("exit.example.com", "other.example.com", None, true),
            ("exit.example.com", "exit.example.com", Some("other"), true),
            ("exit.example.com", "10.0.0.1", None, true),
            ("exit.example.com", "exit.example.com", None, false),
        ] {
            let (near, far) = met(own, host, name, same_ca).await;
            let error = near.unwrap_err().to_string();
            assert!(
                error.contains("invalid peer certificate"),
                "{host}: {error}"
            );
            assert!(far.is_err(), "{host}");
        }
    }
}
