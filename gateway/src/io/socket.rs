//! Socket operations: writes that detect a full kernel buffer, and the options of carriers.

use std::io::{ErrorKind, IoSlice};
use std::os::fd::AsFd;
use std::time::Duration;

use muxtunnel_codes::Code;
use muxtunnel_gateway_config::{CongestionControl, SessionConfig, Timeouts};
use muxtunnel_proto::patience;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::base::path::PathInfo;
use crate::base::sys;

/// A socket whose readiness the runtime tracks.
pub(crate) trait Socket: AsFd {
    /// Runs `io` if the socket is ready for `interest`. Clears the readiness if `io` would block.
    ///
    /// # Errors
    /// `WouldBlock` if the socket is not ready, otherwise the error of `io`.
    fn try_io<R>(
        &self,
        interest: Interest,
        io: impl FnOnce() -> std::io::Result<R>,
    ) -> std::io::Result<R>;

    /// Writes `slices` like writev(2).
    ///
    /// # Errors
    /// The error of writev(2).
    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> std::io::Result<usize>;
}

impl Socket for TcpStream {
    fn try_io<R>(
        &self,
        interest: Interest,
        io: impl FnOnce() -> std::io::Result<R>,
    ) -> std::io::Result<R> {
        Self::try_io(self, interest, io)
    }

    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> std::io::Result<usize> {
        Self::try_write_vectored(self, slices)
    }
}

/// The times after which a carrier with a dead peer is lost, on ordinary paths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeepaliveConfig {
    /// Maximum time without an acknowledgement for data in flight, or with the peer's window
    /// closed.
    pub(in crate::io) dead_after: Duration,
    /// Interval between the probes on an idle carrier.
    pub(in crate::io) interval: Duration,
    /// Number of unanswered probes after which an idle carrier is given up.
    pub(in crate::io) retries: u32,
}

impl KeepaliveConfig {
    /// For carriers whose streams end with the carrier. The values give the path time to recover.
    const ALONE: Self = Self {
        dead_after: Duration::from_secs(15),
        interval: Duration::from_secs(5),
        retries: 2,
    };
    /// For carriers whose streams continue over another carrier.
    const RESUMED: Self = Self {
        dead_after: Duration::from_secs(3),
        interval: Duration::from_secs(1),
        retries: 3,
    };

    /// Returns the configuration, which depends on whether the session survives its carriers.
    pub(crate) fn of(config: &SessionConfig) -> Self {
        if config.resume {
            Self::RESUMED
        } else {
            Self::ALONE
        }
    }
}

/// How the gateway detects that a client or target has vanished without an end of its connection,
/// for example because its host lost power.
///
/// The system probes a silent connection (SO_KEEPALIVE). While the peer owes acknowledgements of
/// data, the system sends no such probes, and retransmits for up to 15 minutes. The gateway ends
/// such a connection earlier ([`Self::has_vanished`]). TCP_USER_TIMEOUT would also end peers that
/// answer, but do not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keepalive {
    /// Time of silence before the first probe.
    time: Duration,
}

impl Keepalive {
    /// Number of unanswered probes after which the peer has vanished.
    const PROBES: u32 = 4;
    /// Number of unanswered retransmissions without which no peer has vanished.
    const RETRANSMITS_MIN: u32 = 3;

    /// `None`: the configuration switches the detection off.
    pub(crate) fn of(timeouts: Timeouts) -> Option<Self> {
        let time = Duration::from_secs(timeouts.keepalive_seconds().into());
        (time > Duration::ZERO).then_some(Self { time })
    }

    /// The interval between probes: a quarter of the time before the first probe, in whole seconds.
    fn interval(self) -> Duration {
        Duration::from_secs(self.time.as_secs().div_ceil(Self::PROBES.into()))
    }

    /// Time after which a peer that answers nothing has vanished.
    pub(crate) fn dead_after(self) -> Duration {
        self.time + self.interval() * Self::PROBES
    }

    /// Whether a peer that owes acknowledgements has vanished. A peer that does not read answers the
    /// probes of its closed window.
    pub(crate) fn has_vanished(self, path: &PathInfo) -> bool {
        let is_silent = path
            .silent
            .is_some_and(|silent| silent >= self.dead_after());
        path.unanswered >= Self::RETRANSMITS_MIN && is_silent
    }
}

/// Sets the system's part of `keepalive`; `None`: off.
///
/// # Errors
/// The system's error.
pub(crate) fn set_keepalive(tcp: &TcpStream, keepalive: Option<Keepalive>) -> std::io::Result<()> {
    let socket = SockRef::from(tcp);
    let Some(keepalive) = keepalive else {
        return socket.set_keepalive(false);
    };
    let probes = TcpKeepalive::new()
        .with_time(keepalive.time)
        .with_interval(keepalive.interval())
        .with_retries(Keepalive::PROBES);
    socket.set_tcp_keepalive(&probes)
}

/// Receive buffer of a carrier before the kernel has measured the required size. With the default
/// of 128 KiB, whole windows arrive before they are read, and Linux 6.18 then assumes that the
/// application cannot keep up. Over a path of 100 ms, one of 35 sessions kept a window of 99 KiB
/// for seconds.
const RECEIVE_ROOM_BYTES: i32 = 1 << 20;
/// Below this round trip time, pacing by measured bandwidth (BBR) halves the rate without a
/// benefit. Measured on loopback with 10 connections, 2026-11.
const RTT_NEAR: Duration = Duration::from_millis(1);
/// The congestion control of a carrier with a short round trip time.
const NEAR: &str = "cubic";

/// Writes as many bytes of `slices` as the socket accepts. `total` is the length of `slices` in
/// bytes.
///
/// # Errors
/// The error of writev(2).
pub(crate) fn write(
    socket: &impl Socket,
    slices: &[IoSlice<'_>],
    total: usize,
) -> std::io::Result<usize> {
    written(socket, total, socket.try_write_vectored(slices))
}

/// Works like [`write()`], for a caller that writes again soon: the kernel holds back a short
/// segment until the next write.
///
/// # Errors
/// The error of sendmsg(2).
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

/// Clears a readiness that the previous call used up. The kernel reports the next readiness. A
/// reported end of the connection remains.
pub(crate) fn not_ready(socket: &impl Socket, interest: Interest) {
    let _ = socket.try_io(interest, || {
        Err::<(), _>(std::io::Error::from(ErrorKind::WouldBlock))
    });
}

/// Sets the detection of dead peers to `keepalive`. Disables Nagle's algorithm, since the gateway
/// itself combines small writes. SO_SNDBUF and SO_RCVBUF remain unset, because setting them would
/// end the kernel's autotuning.
///
/// # Errors
/// The system's error. An unavailable congestion control is not an error.
pub(crate) fn prepare_carrier(
    tcp: &TcpStream,
    congestion_control: CongestionControl,
    keepalive: KeepaliveConfig,
) -> std::io::Result<()> {
    tcp.set_nodelay(true)?;
    let socket = SockRef::from(tcp);
    let probes = TcpKeepalive::new()
        .with_time(keepalive.interval)
        .with_interval(keepalive.interval)
        .with_retries(keepalive.retries);
    socket.set_tcp_keepalive(&probes)?;
    detect_death(tcp, keepalive)?;
    sys::make_receive_room(tcp.as_fd(), RECEIVE_ROOM_BYTES)?;
    set_congestion_control(tcp, congestion_control)
}

/// Sets the time after which the kernel ends a connection with a dead peer. The time follows the
/// round trip, since an answer needs a round trip. With this time set, the kernel ignores the
/// number of unanswered probes.
///
/// # Errors
/// The system's error.
pub(crate) fn detect_death(tcp: &TcpStream, keepalive: KeepaliveConfig) -> std::io::Result<()> {
    let rtt = sys::tcp_info(tcp.as_fd())?.rtt;
    let dead_after = patience(keepalive.dead_after, rtt);
    SockRef::from(tcp).set_tcp_user_timeout(Some(dead_after))
}

/// Sets the options of a relayed connection. The detection of dead peers is that of carriers whose
/// streams continue over another carrier.
pub(crate) fn prepare_relayed(tcp: &TcpStream) {
    let prepared = prepare_carrier(tcp, CongestionControl::Auto, KeepaliveConfig::RESUMED);
    if let Err(error) = prepared {
        tracing::debug!(%error, "Cannot set socket options; the connection keeps the system's defaults");
    }
}

fn set_congestion_control(tcp: &TcpStream, asked: CongestionControl) -> std::io::Result<()> {
    let socket = SockRef::from(tcp);
    let name = match asked {
        CongestionControl::Auto => {
            if sys::tcp_info(tcp.as_fd())?.rtt < RTT_NEAR {
                // If the system does not provide this congestion control, the carrier uses the
                // system's default.
                let _ = socket.set_tcp_congestion(NEAR.as_bytes());
            }
            return Ok(());
        }
        CongestionControl::Cubic => "cubic",
        CongestionControl::Bbr => "bbr",
    };
    if let Err(error) = socket.set_tcp_congestion(name.as_bytes()) {
        let code = Code::CongestionControlRefused;
        tracing::warn!(%code, asked = name, %error, "Cannot set the congestion control; the carrier keeps the system's default");
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

    #[test]
    fn a_peer_has_vanished_after_unanswered_probes_and_a_long_silence() {
        let of = |keepalive_seconds| {
            Keepalive::of(Timeouts {
                keepalive_seconds: Some(keepalive_seconds),
                ..Timeouts::default()
            })
        };
        assert_eq!(of(0), None);
        let keepalive = of(60).unwrap();
        assert_eq!(keepalive.dead_after(), Duration::from_secs(120));
        assert_eq!(of(1).unwrap().dead_after(), Duration::from_secs(5));
        let path = |unanswered, seconds| PathInfo {
            unanswered,
            silent: Some(Duration::from_secs(seconds)),
            ..PathInfo::default()
        };
        assert!(keepalive.has_vanished(&path(3, 120)));
        // A peer with a closed window answers each probe, up to two minutes apart.
        assert!(!keepalive.has_vanished(&path(1, 120)));
        assert!(!keepalive.has_vanished(&path(9, 119)));
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
