//! Connections over loopback.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use muxtunnel_gateway_config::SessionConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::LocalSet;

use super::*;
use crate::io::duplex::{self, ByteStream};

const WINDOWS: KcpWindows = KcpWindows {
    send: 4 << 20,
    receive: 4 << 20,
};

async fn on_this_thread<T>(work: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(work).await
}

fn listener() -> KcpListener {
    let peers = KcpPeers::at_most(8);
    KcpListener::bind("127.0.0.1:0", peers, WINDOWS).unwrap()
}

/// The dialler's end and the acceptor's end.
async fn pair(listener: &KcpListener) -> (Box<dyn Transport>, Box<dyn Transport>) {
    let address = listener.address();
    let (near, far) = tokio::join!(Kcp::connect(address, WINDOWS), listener.accept());
    (near.unwrap(), far.unwrap().0)
}

fn session() -> SessionConfig {
    let text = "role: Exit\nsecurity: {mode: None}\nlisten: 127.0.0.1:1\n";
    let config = muxtunnel_gateway_config::Config::from_yaml(text).unwrap();
    config.session()
}

fn prepare(transport: &dyn Transport) {
    let keepalive = KeepaliveConfig::of(&session());
    let path = transport.path().unwrap();
    path.prepare(CongestionControl::Auto, keepalive).unwrap();
}

#[tokio::test]
async fn bytes_pass_both_ways_and_each_end_is_told() {
    on_this_thread(async {
        let listener = listener();
        let (near, far) = pair(&listener).await;
        assert_eq!(far.peer().split(':').next(), Some("127.0.0.1"));
        [&near, &far].into_iter().for_each(|end| prepare(&**end));
        let sent: Vec<u8> = (0..8 << 20).map(|byte: u32| (byte / 3) as u8).collect();
        let send = async |end: &dyn Transport| {
            duplex::write_all(end, &sent).await.unwrap();
            end.finish().unwrap();
            let error = end.try_write(&[IoSlice::new(b"more")]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        };
        let receive = async |end: &dyn Transport| {
            let mut came = Vec::new();
            ByteStream(end).read_to_end(&mut came).await.unwrap();
            assert!(came == sent);
        };
        tokio::join!(send(&*near), send(&*far), receive(&*near), receive(&*far));
        let info = || near.path().unwrap().info().unwrap();
        // The last acknowledgements may be in flight.
        while info().acknowledged < 8 << 20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(info().rate > 0, "{:?}", info());
    })
    .await;
}

#[tokio::test]
async fn one_that_is_moved_to_another_thread_goes_on() {
    on_this_thread(async {
        let listener = listener();
        let (mut near, far) = pair(&listener).await;
        let mut near = ByteStream(&mut *near as &dyn Transport);
        near.write_all(b"before ").await.unwrap();
        let mut before = [0; 7];
        duplex::read_exact(&*far, &mut before).await.unwrap();
        let far = far.detach().unwrap();
        near.write_all(b"while it moves, ").await.unwrap();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(on_this_thread(async {
                let far = far().unwrap();
                let mut came = Vec::new();
                ByteStream(&*far).read_to_end(&mut came).await.unwrap();
                duplex::write_all(&*far, &came).await.unwrap();
                prepare(&*far);
                far.finish().unwrap();
                // The task runs until this future ends.
                tokio::time::sleep(Duration::from_millis(200)).await;
            }));
        });
        near.write_all(b"and after").await.unwrap();
        near.shutdown().await.unwrap();
        let mut back = Vec::new();
        near.read_to_end(&mut back).await.unwrap();
        assert_eq!(back, b"while it moves, and after");
        thread.join().unwrap();
    })
    .await;
}

#[tokio::test]
async fn what_was_written_arrives_though_the_transport_is_dropped() {
    on_this_thread(async {
        let listener = listener();
        let (near, far) = pair(&listener).await;
        [&near, &far].into_iter().for_each(|end| prepare(&**end));
        let bytes = vec![7; 3 << 20];
        let write = async {
            duplex::write_all(&*near, &bytes).await.unwrap();
            drop(near);
        };
        let mut came = Vec::new();
        let read = async { ByteStream(&*far).read_to_end(&mut came).await };
        let ((), read) = tokio::join!(write, read);
        assert_eq!(read.unwrap(), bytes.len());
    })
    .await;
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_refuses() {
    on_this_thread(async {
        let free = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        // A refusal is not a time-out.
        let error = Kcp::connect(address, WINDOWS).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    })
    .await;
}

#[tokio::test]
async fn who_is_shut_reads_and_writes_nothing_more() {
    on_this_thread(async {
        let listener = listener();
        let (near, far) = pair(&listener).await;
        duplex::write_all(&*far, b"unread").await.unwrap();
        near.shut();
        assert_eq!(duplex::read(&*near, &mut [0; 8]).await.unwrap(), 0);
        assert!(near.try_write(&[IoSlice::new(b"more")]).is_err());
        let mut rest = Vec::new();
        ByteStream(&*far).read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"");
    })
    .await;
}

#[tokio::test]
async fn there_are_no_more_connections_than_the_bound() {
    on_this_thread(async {
        let listener = listener();
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(pair(&listener).await);
        }
        let address = listener.address();
        let accepting = async {
            let accepted = tokio::time::timeout(Duration::from_millis(500), listener.accept());
            assert!(accepted.await.is_err());
        };
        // The listener answers the dialler with a challenge, and stores no state.
        let (near, ()) = tokio::join!(Kcp::connect(address, WINDOWS), accepting);
        let near = near.unwrap();
        held.pop();
        let again = async {
            duplex::write_all(&*near, b"hello").await.unwrap();
            listener.accept().await.unwrap()
        };
        let (far, _) = tokio::time::timeout(Duration::from_secs(5), again)
            .await
            .unwrap();
        let mut hello = [0; 5];
        duplex::read_exact(&*far, &mut hello).await.unwrap();
    })
    .await;
}

/// Sends first datagrams from many addresses until dropped.
struct Flood(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Flood {
    fn of(to: SocketAddr, sources: impl Iterator<Item = [u8; 4]>) -> Self {
        let bind = |source| std::net::UdpSocket::bind((Ipv4Addr::from(source), 0)).unwrap();
        let sockets: Vec<_> = sources.map(bind).collect();
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            let mut connection = [7; 24];
            // A segment of payload, which has no bytes.
            connection[4..].copy_from_slice(&[
                81, 0, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            ]);
            while !ended.load(Relaxed) {
                for socket in &sockets {
                    let _ = socket.send_to(&connection, to);
                }
            }
        });
        Self(ends, Some(thread))
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
        if let Some(thread) = self.1.take() {
            thread.join().unwrap();
        }
    }
}

/// The flood comes from few addresses, from many addresses, and from the peer's own address.
#[tokio::test]
async fn a_flood_does_not_lock_out_honest_peers() {
    on_this_thread(async {
        let few = (1..9).map(|host| [127, 1, 0, host]);
        let many = (0..250).map(|host| [127, 2, host, 1]);
        let own = (0..9).map(|_| [127, 0, 0, 1]);
        let floods: [Box<dyn Iterator<Item = [u8; 4]>>; 3] =
            [Box::new(few), Box::new(many), Box::new(own)];
        for sources in floods {
            let listener = listener();
            let flood = Flood::of(listener.address(), sources);
            let accept = async {
                let hears = async |far: Box<dyn Transport>| {
                    let mut hello = [0; 5];
                    duplex::read_exact(&*far, &mut hello).await.unwrap();
                };
                hears(listener.accept().await.unwrap().0).await;
            };
            let connect = async {
                let near = Kcp::connect(listener.address(), WINDOWS).await.unwrap();
                duplex::write_all(&*near, b"hello").await.unwrap();
                near
            };
            let met = async { tokio::join!(connect, accept) };
            let met = tokio::time::timeout(Duration::from_secs(60), met).await;
            assert!(met.is_ok(), "the peer gets no connection during the flood");
            drop(flood);
        }
    })
    .await;
}
