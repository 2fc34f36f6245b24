//! WebSocket (RFC 6455): carriers through intermediaries that pass only HTTP.
//!
//! A request for an upgrade and its answer precede binary messages. The payloads of the messages
//! form the byte stream, and message boundaries have no meaning. A reader gets the bytes of a
//! message as they arrive, regardless of the message's length. The transport answers pings,
//! and pings a silent peer.

#[cfg(any(test, feature = "oracles"))]
pub(crate) mod oracle;

use std::io::{Result, Write};

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use muxtunnel_gateway_config::WebSocket;
use muxtunnel_gateway_config::status::CarrierTransport;

use super::sealed::{Gather, Opened, Records, Sealed};
use super::{HANDSHAKE_BYTES_MAX, Part, Side, Transport, invalid};
use crate::io::duplex;

/// Appended to a key to compute the answer (section 1.3).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Maximum number of header fields of a request or an answer.
const FIELDS_MAX: usize = 64;
/// Maximum payload of a message that this side sends: the maximum of a two-byte length.
const PLAIN_BYTES_MAX: usize = 65_535;
/// Maximum length of a frame's header in bytes: opcode, length and mask.
const HEADER_BYTES_MAX: usize = 2 + 2 + 4;
const CONTROL_BYTES_MAX: usize = 125;

const FINAL: u8 = 0x80;
const MASKED: u8 = 0x80;
const CONTINUATION: u8 = 0;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Upgrades `below`.
///
/// # Errors
/// The peer does not use WebSocket, or the sides have different paths.
pub(crate) async fn upgrade(
    below: Box<dyn Transport>,
    part: Part<'_>,
    config: &WebSocket,
) -> Result<Box<dyn Transport>> {
    let unread = match part {
        Part::Dials(to) => ask(&*below, config, to.authority).await?,
        Part::Accepts => answer(&*below, config).await?,
    };
    let records = Messages::new(part.side());
    let proof = below.proof().cloned();
    Ok(Sealed::boxed(below, records, proof, &unread, Vec::new()))
}

/// The value of `Sec-WebSocket-Accept` for the `Sec-WebSocket-Key` in `key` (RFC 6455, section
/// 4.2.2).
fn accept_value(key: &str) -> String {
    let text = format!("{key}{GUID}");
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()))
}

/// Sends the request to `host`. Returns bytes that were read after the answer.
async fn ask(below: &dyn Transport, config: &WebSocket, host: &str) -> Result<Vec<u8>> {
    let key = STANDARD.encode(rand::random::<[u8; 16]>());
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n",
        config.path
    );
    duplex::write_all(below, request.as_bytes()).await?;
    let mut bytes = Vec::new();
    loop {
        more(below, &mut bytes).await?;
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut answer = httparse::Response::new(&mut fields);
        if let httparse::Status::Complete(length) = answer.parse(&bytes).map_err(invalid)? {
            let code = answer.code.unwrap_or_default();
            if code != 101 {
                return Err(invalid(format!(
                    "the peer answered the WebSocket upgrade with status {code}, expected 101"
                )));
            }
            if field(answer.headers, "Sec-WebSocket-Accept") != Some(&accept_value(&key)) {
                return Err(invalid(
                    "the answer to the WebSocket upgrade has a wrong Sec-WebSocket-Accept",
                ));
            }
            return Ok(bytes.split_off(length));
        }
    }
}

/// Answers a request. Returns bytes that were read after the request.
async fn answer(below: &dyn Transport, config: &WebSocket) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let (length, answer) = loop {
        more(below, &mut bytes).await?;
        if let Some(heard) = request(&bytes, config)? {
            break heard;
        }
    };
    match answer {
        Ok(proof) => {
            let text = format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: {proof}\r\n\r\n"
            );
            duplex::write_all(below, text.as_bytes()).await?;
            Ok(bytes.split_off(length))
        }
        Err(status) => {
            let text =
                format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            duplex::write_all(below, text.as_bytes()).await?;
            Err(invalid(format!(
                "this gateway refused a WebSocket upgrade with status {status}"
            )))
        }
    }
}

/// The value of `Sec-WebSocket-Accept`, or the HTTP status with which the gateway refuses the
/// upgrade.
type Answer = std::result::Result<String, &'static str>;

/// Parses the request at the start of `bytes`. Returns the request's length and the answer; `None`:
/// the request is incomplete.
///
/// # Errors
/// The bytes are not a request.
fn request(bytes: &[u8], config: &WebSocket) -> Result<Option<(usize, Answer)>> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    Ok(match request.parse(bytes).map_err(invalid)? {
        httparse::Status::Complete(length) => Some((length, judge(&request, config))),
        httparse::Status::Partial => None,
    })
}

fn judge(request: &httparse::Request<'_, '_>, config: &WebSocket) -> Answer {
    let path = request.path.unwrap_or_default();
    if path.split('?').next() != Some(&config.path) {
        return Err("404 Not Found");
    }
    // A browser sends the origin of the page that connects. Gateways and jetsocat send no origin.
    let mut origins = values(request.headers, "Origin");
    if !origins.all(|origin| is_permitted(origin, config)) {
        return Err("403 Forbidden");
    }
    let has = |name, token: &str| {
        let value = field(request.headers, name).unwrap_or_default();
        let mut tokens = value.split(',');
        tokens.any(|found| found.trim().eq_ignore_ascii_case(token))
    };
    let upgrades = has("Upgrade", "websocket") && has("Connection", "upgrade");
    if request.method != Some("GET") || !upgrades {
        return Err("400 Bad Request");
    }
    if !has("Sec-WebSocket-Version", "13") {
        return Err("426 Upgrade Required");
    }
    field(request.headers, "Sec-WebSocket-Key")
        .map(accept_value)
        .ok_or("400 Bad Request")
}

fn is_permitted(origin: &[u8], config: &WebSocket) -> bool {
    let mut permitted = config.origins.iter();
    permitted.any(|permitted| permitted.as_bytes().eq_ignore_ascii_case(origin))
}

fn field<'a>(fields: &'a [httparse::Header<'_>], name: &'a str) -> Option<&'a str> {
    std::str::from_utf8(values(fields, name).next()?).ok()
}

fn values<'a>(fields: &'a [httparse::Header<'_>], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    let named = fields
        .iter()
        .filter(move |field| field.name.eq_ignore_ascii_case(name));
    named.map(|field| field.value)
}

/// Reads more bytes and appends them to `bytes`.
async fn more(below: &dyn Transport, bytes: &mut Vec<u8>) -> Result<()> {
    let mut part = [0; 2048];
    let room = part.len().min(HANDSHAKE_BYTES_MAX - bytes.len());
    if room == 0 {
        return Err(invalid(format!(
            "the HTTP head of the WebSocket upgrade is too long: more than {HANDSHAKE_BYTES_MAX} bytes"
        )));
    }
    match duplex::read(below, &mut part[..room]).await? {
        0 => Err(super::closed_early()),
        length => {
            bytes.extend_from_slice(&part[..length]);
            Ok(())
        }
    }
}

/// The messages of one connection.
#[derive(Debug)]
struct Messages {
    side: Side,
    /// Number of remaining bytes of the current message.
    left: u64,
    /// The mask of the current message, and the number of bytes masked so far.
    mask: [u8; 4],
    masked: usize,
    /// The pending answer to a ping.
    pong: Option<Vec<u8>>,
    /// The pending answer to the peer's close frame.
    goodbye: Option<Vec<u8>>,
    /// Whether a ping must be sent.
    ping: bool,
    /// Number of pongs of the peer.
    pongs: u64,
    /// Whether this side has sent a close frame.
    told: bool,
}

/// The fields of a frame's header.
struct Frame {
    header: usize,
    opcode: u8,
    length: u64,
    mask: [u8; 4],
}

impl Messages {
    fn new(side: Side) -> Self {
        Self {
            side,
            left: 0,
            mask: [0; 4],
            masked: 0,
            pong: None,
            goodbye: None,
            ping: false,
            pongs: 0,
            told: false,
        }
    }

    /// Writes a header for `length` bytes into `out`. Returns the offset of the payload, and the
    /// mask.
    fn begin(&self, opcode: u8, length: usize, mut out: &mut [u8]) -> Result<(usize, [u8; 4])> {
        let all = out.len();
        let flag = if self.side == Side::Dials { MASKED } else { 0 };
        out.write_all(&[FINAL | opcode])?;
        if length <= CONTROL_BYTES_MAX {
            out.write_all(&[flag | length as u8])?;
        } else {
            out.write_all(&[flag | 126])?;
            out.write_all(&(length as u16).to_be_bytes())?;
        }
        let mut mask = [0; 4];
        if self.side == Side::Dials {
            mask = rand::random();
            out.write_all(&mask)?;
        }
        Ok((all - out.len(), mask))
    }

    fn say(&self, opcode: u8, text: &[u8], out: &mut [u8]) -> Result<usize> {
        let (header, mask) = self.begin(opcode, text.len(), out)?;
        let payload = &mut out[header..header + text.len()];
        payload.copy_from_slice(text);
        apply(mask, 0, payload);
        Ok(header + text.len())
    }

    /// Parses the frame at the start of `bytes`; `None`: the frame's header is incomplete.
    ///
    /// # Errors
    /// The frame breaks the protocol.
    fn frame(&self, bytes: &[u8]) -> Result<Option<Frame>> {
        let [first, second, rest @ ..] = bytes else {
            return Ok(None);
        };
        let is_masked = second & MASKED != 0;
        if is_masked != (self.side == Side::Accepts) || first & 0x70 != 0 {
            return Err(invalid(
                "a frame of a WebSocket is malformed: its mask bit is wrong, or a reserved bit is set",
            ));
        }
        let (length, header) = match second & !MASKED {
            126 => match rest.first_chunk() {
                Some(length) => (u16::from_be_bytes(*length).into(), 4),
                None => return Ok(None),
            },
            127 => match rest.first_chunk() {
                Some(length) => (u64::from_be_bytes(*length), 10),
                None => return Ok(None),
            },
            length => (length.into(), 2),
        };
        // The highest bit must be zero (section 5.2).
        if length > i64::MAX as u64 {
            return Err(invalid(format!(
                "a frame of a WebSocket is malformed: its length is {length} bytes"
            )));
        }
        let mask = match is_masked {
            false => Some(([0; 4], header)),
            true => bytes[header.min(bytes.len())..]
                .first_chunk()
                .map(|mask| (*mask, header + 4)),
        };
        Ok(mask.map(|(mask, header)| Frame {
            header,
            opcode: first & 0x0f,
            length,
            mask,
        }))
    }

    /// Handles a control frame that contains `payload`.
    fn control(&mut self, frame: &Frame, payload: &[u8]) -> Result<Opened> {
        match frame.opcode {
            CLOSE => {
                if !std::mem::replace(&mut self.told, true) {
                    // The answer contains the status without the reason (section 5.5.1).
                    let mut status = payload[..payload.len().min(2)].to_vec();
                    apply(frame.mask, 0, &mut status);
                    self.goodbye = Some(status);
                }
                return Ok(Opened::End);
            }
            PING => {
                let mut text = payload.to_vec();
                apply(frame.mask, 0, &mut text);
                self.pong = Some(text);
            }
            PONG => self.pongs += 1,
            opcode => {
                return Err(invalid(format!(
                    "a WebSocket message is not binary: its opcode is {opcode}"
                )));
            }
        }
        Ok(Opened::Record {
            consumed: frame.header + payload.len(),
            length: 0,
        })
    }
}

/// Masks or unmasks `bytes`, which follow the first `before` bytes of a frame.
fn apply(mask: [u8; 4], before: usize, bytes: &mut [u8]) {
    let mask: [u8; 4] = std::array::from_fn(|index| mask[(before + index) % 4]);
    let wide = u64::from_ne_bytes([mask, mask].concat().try_into().unwrap_or_default());
    if wide == 0 {
        return;
    }
    let mut chunks = bytes.chunks_exact_mut(8);
    for chunk in &mut chunks {
        if let Some(chunk) = chunk.first_chunk_mut::<8>() {
            *chunk = (u64::from_ne_bytes(*chunk) ^ wide).to_ne_bytes();
        }
    }
    for (byte, mask) in chunks.into_remainder().iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

impl Records for Messages {
    fn is_transport(&self) -> Option<CarrierTransport> {
        Some(CarrierTransport::WebSocket)
    }

    fn seal(&mut self, plain: &mut Gather<'_>, out: &mut [u8]) -> Result<usize> {
        let mut written = self.answer(out)?;
        while out.len() - written >= HEADER_BYTES_MAX + PLAIN_BYTES_MAX {
            let length = plain.left().min(PLAIN_BYTES_MAX);
            if length == 0 {
                break;
            }
            let out = &mut out[written..];
            let (header, mask) = self.begin(BINARY, length, out)?;
            let payload = &mut out[header..header + length];
            plain.copy(payload);
            apply(mask, 0, payload);
            written += header + length;
        }
        Ok(written)
    }

    fn open(&mut self, sealed: &[u8], plain: &mut [u8]) -> Result<Opened> {
        if self.left > 0 {
            let left = usize::try_from(self.left).unwrap_or(usize::MAX);
            let length = left.min(sealed.len()).min(plain.len());
            if length == 0 {
                return Ok(Opened::Incomplete);
            }
            plain[..length].copy_from_slice(&sealed[..length]);
            apply(self.mask, self.masked, &mut plain[..length]);
            self.left -= length as u64;
            self.masked = (self.masked + length) % 4;
            let consumed = length;
            return Ok(Opened::Record { consumed, length });
        }
        let Some(frame) = self.frame(sealed)? else {
            return Ok(Opened::Incomplete);
        };
        if matches!(frame.opcode, BINARY | CONTINUATION) {
            (self.left, self.mask, self.masked) = (frame.length, frame.mask, 0);
            return Ok(Opened::Record {
                consumed: frame.header,
                length: 0,
            });
        }
        let is_whole = sealed.first().is_some_and(|first| first & FINAL != 0);
        if frame.length > CONTROL_BYTES_MAX as u64 || !is_whole {
            return Err(invalid(
                "a frame of a WebSocket is malformed: a control frame is fragmented or longer than 125 bytes",
            ));
        }
        let end = frame.header + frame.length as usize;
        match sealed.get(frame.header..end) {
            Some(payload) => self.control(&frame, payload),
            None => Ok(Opened::Incomplete),
        }
    }

    fn answer(&mut self, out: &mut [u8]) -> Result<usize> {
        let mut written = 0;
        for (opcode, text) in [(PONG, self.pong.take()), (CLOSE, self.goodbye.take())] {
            if let Some(text) = text {
                written += self.say(opcode, &text, &mut out[written..])?;
            }
        }
        if std::mem::take(&mut self.ping) && !self.told {
            written += self.say(PING, &[], &mut out[written..])?;
        }
        Ok(written)
    }

    fn owes_answer(&self) -> bool {
        self.pong.is_some() || self.goodbye.is_some() || self.ping
    }

    fn ping(&mut self) -> bool {
        self.ping = true;
        true
    }

    fn answers(&self) -> u64 {
        self.pongs
    }

    fn close(&mut self, out: &mut [u8]) -> Result<usize> {
        if std::mem::replace(&mut self.told, true) {
            return Ok(0);
        }
        self.say(CLOSE, &1000_u16.to_be_bytes(), out)
    }
}
