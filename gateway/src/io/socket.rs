//! What is asked of sockets: writes that know when to stop, and the carrier's options.

use std::io::{ErrorKind, IoSlice};
use std::os::fd::AsFd;
use std::time::Duration;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{CongestionControl, SessionConfig};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::base::sys;
use crate::io::local_socket::Socket;

/// When a carrier whose peer vanished is given up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeepaliveConfig {
    /// Without an acknowledgement for what is on its way, or with the peer's window closed, for this long.
    pub(in crate::io) dead_after: Duration,
    /// An idle carrier is probed at this interval...
    pub(in crate::io) interval: Duration,
    /// ...and given up after as many probes without an answer.
    pub(in crate::io) retries: u32,
}

impl KeepaliveConfig {
    /// With the carrier its streams are lost: a path may come back meanwhile.
    const ALONE: Self = Self {
        dead_after: Duration::from_secs(15),
        interval: Duration::from_secs(5),
        retries: 2,
    };
    /// The streams go on over another carrier.
    const RESUMED: Self = Self {
        dead_after: Duration::from_secs(3),
        interval: Duration::from_secs(1),
        retries: 3,
    };

    /// As the session outlives its carriers or not.
    pub(crate) fn of(config: &SessionConfig) -> Self {
        if config.resume {
            Self::RESUMED
        } else {
            Self::ALONE
        }
    }
}

/// What a carrier may receive before the kernel has measured what it needs. With the default, 128 KiB,
/// whole windows arrive before they are read, and Linux 6.18 then takes the bytes that wait for what the
/// application could not take: over 100 ms a window of 99 KiB stayed for seconds in one of 35 sessions.
const RECEIVE_ROOM_BYTES: i32 = 1 << 20;
/// Below this round trip, pacing by measured bandwidth (BBR) costs half of the rate and gains nothing:
/// measured on loopback, 10 connections, 2026-11.
const RTT_NEAR: Duration = Duration::from_millis(1);
/// The congestion control of a near carrier.
const NEAR: &str = "cubic";

/// Writes what the socket takes of `slices`, of `total` bytes.
///
/// # Errors
/// As writev(2).
pub(crate) fn write(
    socket: &impl Socket,
    slices: &[IoSlice<'_>],
    total: usize,
) -> std::io::Result<usize> {
    written(socket, total, socket.try_write_vectored(slices))
}

/// The same, and more is written at once: the kernel waits for it before it sends a short segment.
///
/// # Errors
/// As sendmsg(2).
pub(crate) fn write_before_more(
    tcp: &TcpStream,
    slices: &[IoSlice<'_>],
    total: usize,
) -> std::io::Result<usize> {
    let send = || SockRef::from(tcp).send_vectored_with_flags(slices, libc::MSG_MORE);
    written(tcp, total, tcp.try_io(Interest::WRITABLE, send))
}

fn written(
    socket: &impl Socket,
    total: usize,
    result: std::io::Result<usize>,
) -> std::io::Result<usize> {
    let length = result?;
    if length < total {
        not_ready(socket, Interest::WRITABLE);
    }
    Ok(length)
}

/// Forgets a readiness that the last call used up; the kernel reports the next one. An end of the
/// connection that was reported is not forgotten.
pub(crate) fn not_ready(socket: &impl Socket, interest: Interest) {
    let _ = socket.try_io(interest, || {
        Err::<(), _>(std::io::Error::from(ErrorKind::WouldBlock))
    });
}

/// Own batching makes Nagle's pointless; a dead path is noticed as `keepalive` says. SO_SNDBUF and
/// SO_RCVBUF are left alone, since setting them ends the kernel's autotuning.
///
/// # Errors
/// The system's. A congestion control that cannot be had is none.
pub(crate) fn prepare_carrier(
    tcp: &TcpStream,
    congestion_control: CongestionControl,
    keepalive: KeepaliveConfig,
) -> std::io::Result<()> {
    tcp.set_nodelay(true)?;
    let socket = SockRef::from(tcp);
    let probes = socket2::TcpKeepalive::new()
        .with_time(keepalive.interval)
        .with_interval(keepalive.interval)
        .with_retries(keepalive.retries);
    socket.set_tcp_keepalive(&probes)?;
    socket.set_tcp_user_timeout(Some(keepalive.dead_after))?;
    sys::make_receive_room(tcp.as_fd(), RECEIVE_ROOM_BYTES)?;
    set_congestion_control(tcp, congestion_control)
}

/// A connection that carries what is not looked at: an end of it that vanished is noticed, as on a carrier
/// whose streams go on over another one.
pub(crate) fn prepare_relayed(tcp: &TcpStream) {
    let prepared = prepare_carrier(tcp, CongestionControl::Auto, KeepaliveConfig::RESUMED);
    if let Err(error) = prepared {
        tracing::debug!(%error, "The connection keeps the system's options");
    }
}

fn set_congestion_control(tcp: &TcpStream, asked: CongestionControl) -> std::io::Result<()> {
    let socket = SockRef::from(tcp);
    let name = match asked {
        CongestionControl::Auto => {
            if sys::tcp_info(tcp.as_fd())?.rtt < RTT_NEAR {
                // Where the system does not give it, its own default is as good as any.
                let _ = socket.set_tcp_congestion(NEAR.as_bytes());
            }
            return Ok(());
        }
        CongestionControl::Cubic => "cubic",
        CongestionControl::Bbr => "bbr",
    };
    if let Err(error) = socket.set_tcp_congestion(name.as_bytes()) {
        let code = Code::CongestionControlRefused;
        tracing::warn!(%code, asked = name, %error, "The carrier keeps the system's congestion control");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use muxtunnel_testkit::socket::pair;

    use super::*;

    #[tokio::test]
    async fn a_short_write_waits_for_room() {
        let (near, far) = pair().await;
        let bytes = vec![7; 64 << 20];
        near.writable().await.unwrap();
        let written = write(&near, &[IoSlice::new(&bytes)], bytes.len()).unwrap();
        assert!(written < bytes.len());
        let mut left = written;
        let mut buffer = vec![0; 1 << 20];
        while left > 0 {
            far.readable().await.unwrap();
            left -= far.try_read(&mut buffer).unwrap_or(0);
        }
        near.writable().await.unwrap();
        assert!(write(&near, &[IoSlice::new(&bytes)], bytes.len()).unwrap() > 0);
    }

    #[tokio::test]
    async fn a_near_carrier_has_cubic_where_the_system_gives_it_and_an_unknown_one_changes_nothing()
    {
        let (near, _far) = pair().await;
        let name = || SockRef::from(&near).tcp_congestion().unwrap();
        let system = name();
        let has_cubic = SockRef::from(&near).set_tcp_congestion(b"cubic").is_ok();
        prepare_carrier(&near, CongestionControl::Auto, KeepaliveConfig::ALONE).unwrap();
        let expected = if has_cubic { b"cubic".to_vec() } else { system };
        assert_eq!(name()[..expected.len()], expected[..]);
    }
}
