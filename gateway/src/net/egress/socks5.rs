//! The client side of CONNECT through a SOCKS5 proxy (RFC 1928; with a password, RFC 1929).

use std::io::{Error, ErrorKind, Result};
use std::net::IpAddr;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{bare, hear};

const VERSION: u8 = 5;
const USER_VERSION: u8 = 1;
const NO_USER: u8 = 0;
const USER: u8 = 2;
const NONE_OF_THESE: u8 = 0xff;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// Requests that the proxy at the other end of `tcp` connects to `to`, given as `host:port`.
///
/// # Errors
/// The proxy refused the request, with its reason, or its response is not SOCKS5.
pub(super) async fn connect(
    tcp: &mut TcpStream,
    user: Option<&(String, String)>,
    to: &str,
) -> Result<()> {
    let method = if user.is_some() { USER } else { NO_USER };
    tcp.write_all(&[VERSION, 1, method]).await?;
    match (exactly(tcp).await?, user) {
        ([VERSION, NO_USER], None) => {}
        ([VERSION, USER], Some(user)) => log_in(tcp, user).await?,
        ([VERSION, NONE_OF_THESE], None) => {
            return Err(refused(
                "the proxy requires valid credentials: set USER:PASSWORD in the proxy's URL",
            ));
        }
        ([VERSION, NONE_OF_THESE], Some(_)) => {
            return Err(refused(
                "the proxy does not support password authentication",
            ));
        }
        _ => return Err(invalid()),
    }
    tcp.write_all(&request(to)?).await?;
    let [version, reply, _, kind] = exactly(tcp).await?;
    if version != VERSION {
        return Err(invalid());
    }
    if reply != 0 {
        let text = meaning(reply);
        return Err(refused(&format!("the proxy returned {reply}, {text}")));
    }
    // Skips the address and the port from which the proxy connected.
    match kind {
        IPV4 => drop(exactly::<4>(tcp).await?),
        IPV6 => drop(exactly::<16>(tcp).await?),
        NAME => {
            let [length] = exactly(tcp).await?;
            for _ in 0..length {
                let [_] = exactly(tcp).await?;
            }
        }
        _ => return Err(invalid()),
    }
    let [_, _] = exactly(tcp).await?;
    Ok(())
}

async fn log_in(tcp: &mut TcpStream, (name, password): &(String, String)) -> Result<()> {
    let mut words = vec![USER_VERSION];
    for word in [name, password] {
        // The configuration limits both texts to 255 bytes.
        words.push(word.len() as u8);
        words.extend_from_slice(word.as_bytes());
    }
    tcp.write_all(&words).await?;
    match exactly(tcp).await? {
        [_, 0] => Ok(()),
        [_, _] => Err(refused(
            "the proxy rejected the user name or the password: correct USER:PASSWORD in the proxy's URL",
        )),
    }
}

fn request(to: &str) -> Result<Vec<u8>> {
    let wrong = || {
        let text = format!("the address {to:?} cannot be encoded in SOCKS5");
        Error::new(ErrorKind::InvalidInput, text)
    };
    let (host, port) = to.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    let host = bare(host);
    let mut request = vec![VERSION, CONNECT, 0];
    match host.parse() {
        Ok(IpAddr::V4(ip)) => {
            request.push(IPV4);
            request.extend_from_slice(&ip.octets());
        }
        Ok(IpAddr::V6(ip)) => {
            request.push(IPV6);
            request.extend_from_slice(&ip.octets());
        }
        Err(_) => {
            let length = u8::try_from(host.len()).map_err(|_| wrong())?;
            request.extend_from_slice(&[NAME, length]);
            request.extend_from_slice(host.as_bytes());
        }
    }
    request.extend_from_slice(&port.to_be_bytes());
    Ok(request)
}

/// The meaning of a reply code (RFC 1928, section 6).
const fn meaning(reply: u8) -> &'static str {
    match reply {
        2 => "not allowed",
        3 => "network unreachable",
        4 => "host unreachable",
        5 => "connection refused",
        6 => "no answer in time",
        7 => "command not supported",
        8 => "address type not supported",
        _ => "failure",
    }
}

async fn exactly<const N: usize>(tcp: &mut TcpStream) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    hear(tcp, &mut bytes).await?;
    Ok(bytes)
}

fn refused(text: &str) -> Error {
    Error::new(ErrorKind::ConnectionRefused, text)
}

fn invalid() -> Error {
    Error::new(ErrorKind::InvalidData, "the proxy's response is not SOCKS5")
}

#[cfg(test)]
mod tests {
    use muxtunnel_testkit::socket::pair;
    use tokio::io::AsyncReadExt;

    use super::*;

    #[test]
    fn names_go_as_names_and_addresses_as_addresses() {
        assert_eq!(
            request("far:258").unwrap(),
            b"\x05\x01\x00\x03\x03far\x01\x02"
        );
        assert_eq!(
            request("1.2.3.4:1").unwrap(),
            b"\x05\x01\x00\x01\x01\x02\x03\x04\x00\x01"
        );
        assert_eq!(request("[::1]:1").unwrap()[3], IPV6);
        assert!(request(&format!("{}:1", "a".repeat(256))).is_err());
    }

    #[tokio::test]
    async fn a_refusal_is_told_and_what_is_behind_an_answer_stays() {
        for (answer, expected) in [
            (
                &b"\x05\xff"[..],
                Err("the proxy requires valid credentials: set USER:PASSWORD in the proxy's URL"),
            ),
            (b"HTTP/1.1 400", Err("the proxy's response is not SOCKS5")),
            (
                b"\x05\x00\x05\x02\x00\x01",
                Err("the proxy returned 2, not allowed"),
            ),
            (
                b"\x05",
                Err("the proxy closed the connection before it answered"),
            ),
            (b"\x05\x00\x05\x00\x00\x03\x01a\x00\x01hello", Ok(b"hello")),
            (
                b"\x05\x00\x05\x00\x00\x01\x01\x02\x03\x04\x00\x01hello",
                Ok(b"hello"),
            ),
        ] {
            let (mut near, mut far) = pair().await;
            far.write_all(answer).await.unwrap();
            far.shutdown().await.unwrap();
            let led = connect(&mut near, None, "far:1").await;
            match expected {
                Err(text) => assert_eq!(led.unwrap_err().to_string(), text),
                Ok(behind) => {
                    led.unwrap();
                    let mut left = Vec::new();
                    near.read_to_end(&mut left).await.unwrap();
                    assert_eq!(left, behind);
                }
            }
        }
    }
}
