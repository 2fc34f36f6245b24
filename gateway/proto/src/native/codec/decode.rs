//! Decodes frames.

use super::*;

#[derive(Clone, Copy)]
struct Head {
    frame_type: u8,
    length: u32,
    number: u32,
    value: u64,
    stream: u64,
    offset: u64,
}

impl Head {
    fn read(header: &[u8; HEADER_BYTES]) -> Self {
        let wide = u128::from_be_bytes(*header);
        Self {
            frame_type: (wide >> 120) as u8,
            length: (wide >> 96) as u32 & 0x00ff_ffff,
            number: (wide >> 64) as u32,
            value: wide as u64,
            stream: (wide >> 48) as u64 & OFFSET_MAX,
            offset: wide as u64 & OFFSET_MAX,
        }
    }

    /// The body as text.
    fn text(self, body: &[u8]) -> Result<String, DecodeError> {
        let text = std::str::from_utf8(body).map(str::to_owned);
        text.map_err(|_| DecodeError::NotUtf8(self.frame_type))
    }

    /// The value of a frame about the session.
    fn value(self) -> Result<u64, DecodeError> {
        if self.number == 0 {
            Ok(self.value)
        } else {
            Err(DecodeError::BadField(self.frame_type))
        }
    }

    /// The id of a frame about a stream. Id 0 is invalid.
    fn stream(self) -> Result<StreamId, DecodeError> {
        if self.stream == 0 {
            return Err(DecodeError::BadField(self.frame_type));
        }
        Ok(StreamId(self.stream))
    }

    /// The stream's id in a frame that has no offset.
    fn stream_only(self) -> Result<StreamId, DecodeError> {
        if self.offset != 0 {
            return Err(DecodeError::BadField(self.frame_type));
        }
        self.stream()
    }

    /// The id of a frame about a listener. Id 0 is invalid.
    fn listen(self) -> Result<ListenId, DecodeError> {
        match self.number {
            0 => Err(DecodeError::BadField(self.frame_type)),
            number => Ok(ListenId(number)),
        }
    }

    fn code(self) -> Result<u16, DecodeError> {
        u16::try_from(self.offset).map_err(|_| DecodeError::BadField(self.frame_type))
    }

    fn blank(self) -> Result<(), DecodeError> {
        if self.stream == 0 && self.offset == 0 {
            Ok(())
        } else {
            Err(DecodeError::BadField(self.frame_type))
        }
    }
}

/// Decodes the first frame of `bytes`. Never panics. Allocates at most [`BODY_BYTES_MAX`], and only
/// once the frame is complete.
///
/// # Errors
/// [`DecodeError`]: the session must be given up.
pub fn decode(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        if let Some(&frame_type) = bytes.first() {
            body_bounds(frame_type)?;
        }
        return Ok(Decoded::Incomplete {
            needed: HEADER_BYTES,
        });
    };
    let head = Head::read(header);
    let (least, most) = body_bounds(head.frame_type)?;
    if !(least..=most).contains(&head.length) {
        return Err(DecodeError::BadLength {
            frame_type: head.frame_type,
            length: head.length,
        });
    }
    if matches!(head.frame_type, STREAM | STREAM_FIN) {
        return Ok(Decoded::Stream {
            stream: head.stream()?,
            offset: head.offset,
            length: head.length,
            fin: head.frame_type == STREAM_FIN,
        });
    }
    let consumed = HEADER_BYTES + head.length as usize;
    let Some(body) = bytes.get(HEADER_BYTES..consumed) else {
        return Ok(Decoded::Incomplete { needed: consumed });
    };
    if head.frame_type == DATAGRAM {
        head.blank()?;
        return Ok(Decoded::Datagram { consumed });
    }
    Ok(Decoded::Frame {
        frame: frame(head, body)?,
        consumed,
    })
}

/// Shortest and longest body of a frame type, in bytes.
fn body_bounds(frame_type: u8) -> Result<(u32, u32), DecodeError> {
    let text = TEXT_BYTES_MAX as u32;
    Ok(match frame_type {
        HELLO => (hello::HELLO_FIXED as u32, hello::HELLO_BYTES_MAX as u32),
        HELLO_ACK => (hello::ACK_FIXED as u32, hello::HELLO_BYTES_MAX as u32),
        OPEN => (2, 1 + TARGET_LENGTH_MAX as u32),
        // priority, source, target
        OPEN_FROM => (
            1 + 1 + 1,
            (1 + source::SOURCE_BYTES_MAX + TARGET_LENGTH_MAX) as u32,
        ),
        STREAM | STREAM_FIN => (0, FRAME_BYTES_MAX),
        DATAGRAM => (1, DATAGRAM_BYTES_MAX as u32),
        // A later version may add items.
        ASSIGN => (0, BODY_BYTES_MAX as u32),
        SESSION_CLOSE | OPENED => (0, text),
        RESET_STREAM => (2, 2 + text),
        LISTEN => (2, 1 + LISTEN_ADDRESS_LENGTH_MAX as u32),
        LISTENING | UNLISTEN => (0, text),
        PING | PONG | GOAWAY | MAX_STREAM_DATA | MAX_DATA | MAX_STREAMS | STOP_SENDING | ACK
        | CARRIER_LOST | CARRIERS | RETIRE => (0, 0),
        other => return Err(DecodeError::UnknownType(other)),
    })
}

fn frame(head: Head, body: &[u8]) -> Result<Frame, DecodeError> {
    match head.frame_type {
        OPEN | OPEN_FROM | OPENED | MAX_STREAM_DATA | RESET_STREAM | STOP_SENDING => {
            stream_frame(head, body)
        }
        LISTEN | LISTENING | UNLISTEN => listener_frame(head, body),
        _ => session_frame(head, body),
    }
}

/// Decodes a frame about the session or its carriers.
fn session_frame(head: Head, body: &[u8]) -> Result<Frame, DecodeError> {
    Ok(match head.frame_type {
        HELLO => {
            head.blank()?;
            Frame::Hello(Hello::read(body)?)
        }
        HELLO_ACK => {
            head.blank()?;
            Frame::HelloAck(HelloAck::read(body)?)
        }
        SESSION_CLOSE => Frame::SessionClose {
            code: head.value()?,
            reason: head.text(body)?,
        },
        PING => Frame::Ping(head.value()?),
        PONG => Frame::Pong(head.value()?),
        GOAWAY if head.offset == 0 => Frame::GoAway {
            last: StreamId(head.stream),
        },
        MAX_DATA => Frame::MaxData(head.value()?),
        MAX_STREAMS => Frame::MaxStreams(head.value()?),
        ACK => Frame::Ack {
            received: head.value()?,
        },
        CARRIER_LOST => Frame::CarrierLost {
            carrier: head.number,
            received: head.value,
        },
        CARRIERS => Frame::Carriers {
            count: head.number,
            serial: head.value,
        },
        RETIRE => {
            head.blank()?;
            Frame::Retire
        }
        ASSIGN => {
            head.blank()?;
            Frame::Assign(Assignment::decode(body).ok_or(DecodeError::BadAssignment)?)
        }
        other => return Err(DecodeError::BadField(other)),
    })
}

/// Decodes a frame about one stream, except for payload.
fn stream_frame(head: Head, body: &[u8]) -> Result<Frame, DecodeError> {
    Ok(match head.frame_type {
        OPEN => match body {
            [priority, target @ ..] => Frame::Open {
                stream: head.stream_only()?,
                priority: *priority,
                source: None,
                target: head.text(target)?,
            },
            [] => return Err(DecodeError::BadField(OPEN)),
        },
        OPEN_FROM => {
            let source = body.get(1..).and_then(source::read);
            let (Some((source, target @ [_, ..])), Some(priority)) = (source, body.first()) else {
                return Err(DecodeError::BadField(OPEN_FROM));
            };
            Frame::Open {
                stream: head.stream_only()?,
                priority: *priority,
                source: Some(source),
                target: head.text(target)?,
            }
        }
        OPENED => Frame::Opened {
            stream: head.stream_only()?,
            address: head.text(body)?,
        },
        MAX_STREAM_DATA => Frame::MaxStreamData {
            stream: head.stream()?,
            limit: head.offset,
        },
        RESET_STREAM => match body {
            [high, low, reason @ ..] => Frame::ResetStream {
                stream: head.stream()?,
                code: u16::from_be_bytes([*high, *low]),
                final_size: head.offset,
                reason: head.text(reason)?,
            },
            _ => return Err(DecodeError::BadField(RESET_STREAM)),
        },
        STOP_SENDING => Frame::StopSending {
            stream: head.stream()?,
            code: head.code()?,
        },
        other => return Err(DecodeError::BadField(other)),
    })
}

/// Decodes a frame about a listener.
fn listener_frame(head: Head, body: &[u8]) -> Result<Frame, DecodeError> {
    Ok(match head.frame_type {
        LISTEN => match body {
            [priority, address @ ..] if head.value == 0 => Frame::Listen {
                listen: head.listen()?,
                priority: *priority,
                address: head.text(address)?,
            },
            _ => return Err(DecodeError::BadField(LISTEN)),
        },
        LISTENING if head.value == 0 => Frame::Listening {
            listen: head.listen()?,
            address: head.text(body)?,
        },
        UNLISTEN => Frame::Unlisten {
            listen: head.listen()?,
            code: head.value,
            reason: head.text(body)?,
        },
        other => return Err(DecodeError::BadField(other)),
    })
}
