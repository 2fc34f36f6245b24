//! Why one of two gateways does not accept the other's public key, in every transport.

use std::fmt;
use std::io::{Error, ErrorKind};

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::GatewayKey;
use quinn::{ConnectionError, TransportErrorCode};
use rustls::{AlertDescription, CertificateError, OtherError};

/// A refusal of a key by one of both sides.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum KeyRefusal {
    /// This side does not accept the peer's key, for this reason.
    Here(String),
    /// The other side does not accept this side's key, which is known except with QUIC.
    ByPeer(Option<GatewayKey>),
    /// The other side ended the handshake with this alert.
    Alert(u8),
}

impl fmt::Display for KeyRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(reason) => f.write_str(reason),
            Self::ByPeer(own) => {
                f.write_str("the other end does not accept this gateway's key")?;
                if let Some(own) = own {
                    write!(f, " {own}")?;
                }
                f.write_str(": add the key to the peers of the other end")
            }
            Self::Alert(alert) => write!(
                f,
                "the other end sent TLS alert {alert}: do both ends have security mode PublicKeys and the same protocol?"
            ),
        }
    }
}

/// The library shows the cause of a refusal in this form.
impl fmt::Debug for KeyRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for KeyRefusal {}

impl KeyRefusal {
    pub(crate) fn into_error(self) -> Error {
        let kind = match self {
            Self::Here(_) | Self::ByPeer(_) => ErrorKind::PermissionDenied,
            Self::Alert(_) => ErrorKind::InvalidData,
        };
        Error::new(kind, self)
    }

    /// The refusal in an error of this module.
    pub(crate) fn find(error: &Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// Whether the peer refused this side's key on a carrier of a session. HTTP/2's library passes on
    /// only the kind and the text of an error. Errors of the system have no text of their own.
    pub(crate) fn is_by_peer(error: &Error) -> bool {
        error.kind() == ErrorKind::PermissionDenied && error.get_ref().is_some()
    }

    /// The code of a connection that failed with `error`; `None`: no key was refused.
    pub(crate) fn code_of(error: &Error) -> Option<Code> {
        match Self::find(error)? {
            Self::Here(_) => Some(Code::KeyUnknown),
            Self::ByPeer(_) => Some(Code::KeyRefused),
            Self::Alert(_) => None,
        }
    }

    /// The refusal of a key that `list` does not have. `keys`: the text of the key in each role that the
    /// list permits.
    pub(crate) fn of_unknown(keys: &str, list: &str) -> Self {
        Self::Here(format!(
            "{UNKNOWN_BEGIN}{keys} is not in {list}: if the peer may connect, compare the key with `muxgate keygen \
             --show` at the peer, and add the key"
        ))
    }

    /// The unknown key that `text`, the text of an error, refuses. The library of QUIC passes on only the
    /// text of a refusal.
    pub(crate) fn unknown_key(text: &str) -> Option<GatewayKey> {
        let key = text.strip_prefix(UNKNOWN_BEGIN)?.split(' ').next()?;
        key.parse().ok()
    }

    /// The meaning of the peer's TLS alert `alert`.
    pub(crate) fn of_alert(alert: u8, own: Option<GatewayKey>) -> Self {
        match AlertDescription::from(alert) {
            AlertDescription::CertificateUnknown => Self::ByPeer(own),
            _ => Self::Alert(alert),
        }
    }

    /// The error of a TLS handshake, with the refusal if a key was refused.
    pub(crate) fn of_handshake(error: Error, own: Option<GatewayKey>) -> Error {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        let refusal = match inner {
            Some(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(cause)))) => {
                cause.downcast_ref::<Self>().cloned()
            }
            Some(rustls::Error::AlertReceived(alert)) => {
                Some(Self::of_alert(u8::from(*alert), own))
            }
            _ => None,
        };
        refusal.map_or(error, Self::into_error)
    }

    /// The error of a QUIC connection, with the refusal if a key was refused. No other security
    /// mode uses this alert.
    pub(crate) fn of_quic(error: ConnectionError) -> Error {
        let alert = TransportErrorCode::crypto(u8::from(AlertDescription::CertificateUnknown));
        match error {
            ConnectionError::TransportError(error) if error.code == alert => {
                // The library passes on only the text of the cause.
                let cause = error.reason.split_once(CAUSE_BEGIN);
                let cause = cause.and_then(|(_, cause)| cause.strip_suffix(CAUSE_END));
                Self::Here(cause.unwrap_or(&error.reason).to_owned()).into_error()
            }
            ConnectionError::ConnectionClosed(close) if close.error_code == alert => {
                Self::ByPeer(None).into_error()
            }
            error => error.into(),
        }
    }
}

/// Before the key in the text of [`KeyRefusal::of_unknown`].
const UNKNOWN_BEGIN: &str = "the peer's key ";
/// The text of rustls around the cause of a refusal.
const CAUSE_BEGIN: &str = "Other(OtherError(";
const CAUSE_END: &str = "))";
