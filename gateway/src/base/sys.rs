//! System calls that no safe library provides, and a file in the event loop. All `unsafe` code of
//! muxgate is in this module.

use std::fs::File;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::base::path::{PathInfo, SendTimes};

/// `tcpi_delivery_rate_app_limited`, the first bit of its byte, as C lays out bit fields.
const APP_LIMITED: u8 = if cfg!(target_endian = "big") { 0x80 } else { 1 };

/// The kernel's layout up to `tcpi_rcv_ooopack`. The kernel writes at most the given length.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawTcpInfo {
    /// state, ca_state, retransmits, probes, backoff, options, wscale bits, app_limited bit
    bytes: [u8; 8],
    /// rto, ato, snd_mss, rcv_mss
    timing: [u32; 4],
    /// unacked, sacked, lost, retrans, fackets
    unacked: u32,
    counts: [u32; 4],
    /// last_data_sent, last_ack_sent, last_data_recv, last_ack_recv
    last: [u32; 4],
    /// pmtu, rcv_ssthresh
    path: [u32; 2],
    rtt: u32,
    rttvar: u32,
    snd_ssthresh: u32,
    snd_cwnd: u32,
    /// advmss, reordering, rcv_rtt, rcv_space
    receiver: [u32; 4],
    total_retrans: u32,
    /// pacing_rate, max_pacing_rate, bytes_acked, bytes_received
    rates: [u64; 4],
    /// segs_out, segs_in
    segments: [u32; 2],
    notsent_bytes: u32,
    min_rtt: u32,
    /// data_segs_in, data_segs_out
    data_segments: [u32; 2],
    delivery_rate: u64,
    /// busy_time, rwnd_limited, sndbuf_limited, in microseconds
    sending: [u64; 3],
    /// delivered, delivered_ce
    delivered: [u32; 2],
    /// bytes_sent, bytes_retrans
    bytes_sent: [u64; 2],
    /// dsack_dups, reord_seen
    duplicates: [u32; 2],
    /// Since Linux 5.4.
    rcv_ooopack: u32,
    /// The kernel's counters have 8 bytes each.
    rest: u32,
}

/// Number of free bytes that the allocator keeps at the end of a thread's heap. Frames of 1 MiB are
/// allocated and freed many times per second.
#[cfg(target_env = "gnu")]
const FREE_KEPT_BYTES: libc::c_int = 8 << 20;

/// Makes glibc's allocator keep the memory of frames that were read, and not return this memory to
/// the system. Without this setting, page faults reduced the rate of HTTP/2 by a third. The
/// function has no effect on other allocators.
#[allow(unsafe_code)]
pub(crate) fn keep_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt only sets parameters of the allocator, under its own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, FREE_KEPT_BYTES / 2);
        libc::mallopt(libc::M_TRIM_THRESHOLD, FREE_KEPT_BYTES);
    }
}

/// Reads the part of TCP_INFO (`struct tcp_info`, linux/tcp.h) that the gateway uses.
///
/// # Errors
/// The system call fails if `socket` is not a TCP socket.
#[allow(unsafe_code)]
pub(crate) fn tcp_info(socket: BorrowedFd<'_>) -> std::io::Result<PathInfo> {
    let mut raw = RawTcpInfo::default();
    let mut length = size_of::<RawTcpInfo>() as libc::socklen_t;
    // SAFETY: `raw` is a plain repr(C) struct of integers that outlives the call, `length` is its
    // size, and the kernel writes at most `length` bytes; every bit pattern is valid for it.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            std::ptr::from_mut(&mut raw).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let [.., bytes_acked, _] = raw.rates;
    // An older kernel writes fewer bytes, and reports the shorter length.
    let has_sending = length as usize >= offset_of!(RawTcpInfo, delivered);
    let [_, _, retransmits, probes, ..] = raw.bytes;
    let [.., last_acknowledged] = raw.last;
    let [busy, window_limited, send_buffer_limited] = raw.sending.map(Duration::from_micros);
    Ok(PathInfo {
        rtt: Duration::from_micros(raw.rtt.into()),
        rtt_min: Duration::from_micros(if raw.min_rtt == u32::MAX {
            0
        } else {
            raw.min_rtt.into()
        }),
        congestion_window: raw.snd_cwnd,
        retransmits: raw.total_retrans.into(),
        out_of_order: raw.rcv_ooopack.into(),
        unacknowledged: raw.unacked,
        queued: raw.notsent_bytes,
        rate: raw.delivery_rate,
        app_limited: raw.bytes[7] & APP_LIMITED != 0,
        acknowledged: bytes_acked,
        unanswered: retransmits.max(probes).into(),
        silent: Some(Duration::from_millis(last_acknowledged.into())),
        sending: has_sending.then_some(SendTimes {
            busy,
            window_limited,
            send_buffer_limited,
        }),
    })
}

/// Lets a TCP socket receive `bytes` from the start, as far as `tcp_rmem` permits. SO_RCVBUF would
/// end the kernel's autotuning. SO_RCVLOWAT makes room for the bytes that the kernel has to gather
/// (`tcp_set_rcvlowat`, net/ipv4/tcp.c). The room remains after the value is reset.
///
/// # Errors
/// The system call fails.
pub(crate) fn make_receive_room(socket: BorrowedFd<'_>, bytes: i32) -> std::io::Result<()> {
    set_receive_low_water(socket, bytes)?;
    set_receive_low_water(socket, 1)
}

#[allow(unsafe_code)]
fn set_receive_low_water(socket: BorrowedFd<'_>, bytes: i32) -> std::io::Result<()> {
    // SAFETY: the pointer is to a c_int that outlives the call, and the length is its size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            std::ptr::from_ref(&bytes).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// CPU time and peak memory of this process.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// User and system time.
    pub(crate) cpu: Duration,
    /// Peak resident set, bytes.
    pub(crate) max_rss_bytes: u64,
}

/// Reads getrusage(2) for this process.
#[allow(unsafe_code)]
pub(crate) fn usage() -> Usage {
    let mut raw = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `raw` is a valid place for a rusage, zeroed (all its fields are integers), and
    // RUSAGE_SELF cannot fail with a valid pointer; on failure the zeroes are read.
    let raw = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, raw.as_mut_ptr());
        raw.assume_init()
    };
    let time = |tv: libc::timeval| {
        Duration::from_secs(tv.tv_sec.max(0).unsigned_abs())
            + Duration::from_micros(tv.tv_usec.max(0).unsigned_abs())
    };
    Usage {
        cpu: time(raw.ru_utime) + time(raw.ru_stime),
        max_rss_bytes: raw.ru_maxrss.max(0).unsigned_abs() * 1024,
    }
}

/// Registers `file` in this thread's event loop.
///
/// # Errors
/// The system call fails; `PermissionDenied`: the file is of a type that is always ready.
#[allow(unsafe_code)]
pub(crate) fn watched(file: File, interest: Interest) -> std::io::Result<AsyncFd<File>> {
    // SAFETY: a `File` owns its descriptor, which stays open and does not change until the file is
    // dropped. An `AsyncFd` behind a shared reference gives no access to it as `&mut`.
    let watched = unsafe { AsyncFd::register_with_interest(file, interest) };
    watched.map_err(Into::into)
}

/// Creates an instruction of the classic packet filter (linux/filter.h).
pub(crate) fn statement(code: u32, value: u32) -> libc::sock_filter {
    jump(code, value, 0, 0)
}

/// Works as [`statement`]. If the comparison holds, the instruction skips `holds` instructions,
/// otherwise `fails` instructions.
pub(crate) fn jump(code: u32, value: u32, holds: u8, fails: u8) -> libc::sock_filter {
    libc::sock_filter {
        // All codes have 8 bits.
        code: code as u16,
        jt: holds,
        jf: fails,
        k: value,
    }
}

/// Makes `program` choose among the sockets that share the port of `socket`
/// (SO_ATTACH_REUSEPORT_CBPF, socket(7)). The program reads the datagram from its first byte. The
/// program returns the index of a socket. Sockets are numbered in the order in which they were
/// bound.
///
/// # Errors
/// The system call fails.
#[allow(unsafe_code)]
pub(crate) fn choose_socket_by(
    socket: BorrowedFd<'_>,
    program: &[libc::sock_filter],
) -> std::io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap_or(u16::MAX),
        // The kernel only reads the program.
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: `program` is a sock_fprog that outlives the call, and is passed with its size. Its
    // pointer is to as many instructions as its length declares, and the kernel copies the
    // instructions.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            std::ptr::from_ref(&program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Request numbers from linux/if_tun.h, as `_IOW('T', ...)` computes them.
const TUNSETIFF: libc::Ioctl = 0x4004_54ca_u32 as libc::Ioctl;
const TUNSETOFFLOAD: libc::Ioctl = 0x4004_54d0_u32 as libc::Ioctl;
const TUNSETQUEUE: libc::Ioctl = 0x4004_54d9_u32 as libc::Ioctl;
const TUNSETVNETHDRSZ: libc::Ioctl = 0x4004_54d8_u32 as libc::Ioctl;
const TUNSETVNETLE: libc::Ioctl = 0x4004_54dc_u32 as libc::Ioctl;
/// A constant from linux/if_tun.h.
const IFF_DETACH_QUEUE: i16 = 0x0400;
/// Maximum length of an interface's name in bytes, including the final zero.
const IFNAMSIZ: usize = 16;

/// The part of `struct ifreq` (linux/if.h) that TUNSETIFF and TUNSETQUEUE use; the kernel copies
/// all of its 40 bytes.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; IFNAMSIZ],
    flags: i16,
    rest: [u8; 22],
}

/// Attaches `tun`, an open /dev/net/tun, to the interface `name` of at most 15 bytes (TUNSETIFF).
///
/// # Errors
/// The system call fails.
pub(crate) fn attach_tun(tun: BorrowedFd<'_>, name: &str, flags: i16) -> std::io::Result<()> {
    request_interface(tun, TUNSETIFF, name, flags)
}

/// Stops the delivery of packets to `tun`, one of several queues of an interface. The gateway can
/// still write packets to the queue (TUNSETQUEUE).
///
/// # Errors
/// The system call fails if `tun` is the only queue that the interface can have.
pub(crate) fn detach_tun(tun: BorrowedFd<'_>) -> std::io::Result<()> {
    request_interface(tun, TUNSETQUEUE, "", IFF_DETACH_QUEUE)
}

#[allow(unsafe_code)]
fn request_interface(
    tun: BorrowedFd<'_>,
    number: libc::Ioctl,
    name: &str,
    flags: i16,
) -> std::io::Result<()> {
    let mut request = InterfaceRequest {
        name: [0; IFNAMSIZ],
        flags,
        rest: [0; 22],
    };
    let bytes = name
        .as_bytes()
        .get(..IFNAMSIZ - 1)
        .unwrap_or(name.as_bytes());
    for (place, byte) in request.name.iter_mut().zip(bytes) {
        *place = *byte;
    }
    // SAFETY: `request` is as long as a struct ifreq (40 bytes) and outlives the call. Every bit
    // pattern that the kernel writes into it is valid.
    let result = unsafe { libc::ioctl(tun.as_raw_fd(), number, std::ptr::from_mut(&mut request)) };
    ok(result)
}

/// Sets the offloads of `tun`, as TUN_F_* (TUNSETOFFLOAD). The kernel may pass packets with these
/// offloads to the reader of `tun` without segmentation, or with an incomplete checksum.
///
/// # Errors
/// The system call fails if the kernel does not support one of the offloads.
#[allow(unsafe_code)]
pub(crate) fn set_tun_offloads(tun: BorrowedFd<'_>, offloads: u32) -> std::io::Result<()> {
    // SAFETY: the argument of this request is a number.
    let result = unsafe {
        libc::ioctl(
            tun.as_raw_fd(),
            TUNSETOFFLOAD,
            libc::c_ulong::from(offloads),
        )
    };
    ok(result)
}

/// Puts a virtio-net header of `bytes` bytes in front of each packet of `tun` (TUNSETVNETHDRSZ).
/// The header is little endian (TUNSETVNETLE).
///
/// # Errors
/// The system call fails.
#[allow(unsafe_code)]
pub(crate) fn set_tun_header(tun: BorrowedFd<'_>, bytes: i32) -> std::io::Result<()> {
    for (request, value) in [(TUNSETVNETHDRSZ, bytes), (TUNSETVNETLE, 1)] {
        // SAFETY: the argument of both requests is a pointer to an int, which outlives the call and
        // is only read.
        let result = unsafe { libc::ioctl(tun.as_raw_fd(), request, std::ptr::from_ref(&value)) };
        ok(result)?;
    }
    Ok(())
}

/// Makes the user `owner` the owner of the interface, so that this user may open it without a
/// capability. The interface then also persists when `tun` is closed (TUNSETOWNER, TUNSETPERSIST).
///
/// # Errors
/// The system call fails.
#[allow(unsafe_code)]
pub(crate) fn keep_tun(tun: BorrowedFd<'_>, owner: u32) -> std::io::Result<()> {
    for (request, value) in [(libc::TUNSETOWNER, owner), (libc::TUNSETPERSIST, 1)] {
        // SAFETY: the argument of both requests is a number.
        let result = unsafe { libc::ioctl(tun.as_raw_fd(), request, libc::c_ulong::from(value)) };
        ok(result)?;
    }
    Ok(())
}

fn ok(result: libc::c_int) -> std::io::Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_connection_has_a_round_trip_time_and_nothing_left_to_send() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _accepted = listener.accept().unwrap();
        let info = tcp_info(stream.as_fd()).unwrap();
        assert!(
            info.congestion_window > 0 && info.rtt < Duration::from_secs(1),
            "{info:?}"
        );
        assert_eq!((info.queued, info.unacknowledged), (0, 0));
    }

    #[test]
    fn a_peer_that_does_not_read_is_seen_as_its_window() {
        use std::io::Write;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _accepted = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 1 << 16]).is_ok() {}
        std::thread::sleep(Duration::from_millis(100));
        let info = tcp_info(stream.as_fd()).unwrap();
        let times = info.sending.unwrap();
        assert!(info.acknowledged > 0 && info.queued > 0, "{info:?}");
        assert!(
            times.window_limited >= Duration::from_millis(50),
            "{info:?}"
        );
        assert!(times.busy >= times.window_limited, "{info:?}");
    }

    #[test]
    fn room_to_receive_is_made_and_a_single_byte_is_still_told() {
        use std::io::Read;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let room = || socket2::SockRef::from(&stream).recv_buffer_size().unwrap();
        let before = room();
        make_receive_room(stream.as_fd(), 1 << 20).unwrap();
        assert!(room() > before.max(1 << 20), "{before} -> {}", room());
        let (mut accepted, _) = listener.accept().unwrap();
        std::io::Write::write_all(&mut accepted, b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }

    #[test]
    fn the_process_has_memory() {
        assert!(usage().max_rss_bytes > 1 << 20);
    }
}
