//! Two sessions over one connection; what each side hears of the other.

use std::net::SocketAddr;
use std::sync::Arc;

use muxtunnel_gateway_config::Config;
use muxtunnel_proto::Priority;
use muxtunnel_testkit::socket::pair;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio::task::LocalSet;

use super::*;
use crate::base::telemetry::Telemetry;
use crate::ingress::listener::answer::Answer;
use crate::io::local_socket::LocalSocket;
use crate::io::transport::Tcp;
use crate::net::dial::Dialled;
use crate::session::mux::{Dial, Dialler, Mux, OpenEnd, Progress};
use crate::session::new_session::{self, Context};
use crate::stream::account::Local as LocalIs;
use crate::stream::early_data::Connection as Client;

/// Both ends of a session, the exit's by what `dials` gives for each target.
async fn sessions(dials: Dialler) -> (Rc<dyn Mux>, Rc<dyn Mux>) {
    let context = |role: &str| {
        let text = format!("{role}\nprotocol: HTTP2\nsecurity: {{mode: None}}\n");
        let config = Config::from_yaml(&text).unwrap();
        Context {
            telemetry: Telemetry::new(&config, "", 1, None),
            reloadable: watch::channel(Arc::new(config.reloadable())).1,
            config: config.session(),
            buffers: Rc::default(),
        }
    };
    let nothing = Box::new(|_, _, _| -> Dial { Box::pin(std::future::pending()) });
    let entry = new_session::dial(context("role: Entry\nconnect: far:1"), nothing);
    let identity = new_session::identity(0);
    let exit = context("role: Exit\nlisten: '127.0.0.1:1'");
    let exit = new_session::accept(exit, identity, dials);
    let (near, far) = pair().await;
    for (mux, tcp) in [(&entry, near), (&exit, far)] {
        let carriers = mux.carriers().unwrap();
        drop(
            carriers
                .add(Tcp::boxed(tcp).into(), Vec::new(), None)
                .unwrap(),
        );
        let mux = Rc::clone(mux);
        tokio::task::spawn_local(async move { mux.run().await });
    }
    entry.reached(Progress::Ready).await;
    (entry, exit)
}

/// A dialler all of whose targets are at `address`.
fn leads_to(address: SocketAddr) -> Dialler {
    Box::new(move |target, _, _| -> Dial {
        Box::pin(async move {
            if !target.starts_with("tcp://web:") {
                return Err(Refusal::new(
                    Reason::NotAllowed,
                    format!("{target} is denied"),
                ));
            }
            let tcp = TcpStream::connect(address).await.unwrap();
            Ok(Dialled {
                socket: Box::new(LocalSocket::from(tcp)),
                address: address.into(),
                admission: None,
                url: None,
            })
        })
    })
}

/// Opens a stream; its client, and what comes of it where it comes to nothing.
async fn open(mux: &Rc<dyn Mux>, target: &str) -> (TcpStream, oneshot::Receiver<OpenEnd>) {
    let (socket, client) = pair().await;
    let (tell, end) = oneshot::channel();
    let connection = Client {
        socket: Box::new(LocalSocket::from(socket)),
        local: LocalIs::Own {
            target: target.into(),
            ended: RefCell::default(),
        },
        early: b"early ".to_vec(),
        answer: Answer::None,
        source: None,
    };
    let refused = Box::new(move |end| drop(tell.send(end)));
    let opened = mux.open(target, Priority::Auto, connection, refused);
    assert!(opened.is_ok());
    (client, end)
}

async fn in_time(test: impl Future<Output = ()>) {
    let tasks = LocalSet::new();
    let in_time = tokio::time::timeout(Duration::from_secs(60), tasks.run_until(test));
    in_time.await.unwrap();
}

#[tokio::test]
async fn what_was_read_of_a_client_before_comes_first_and_each_half_ends_by_itself() {
    in_time(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dials = leads_to(listener.local_addr().unwrap());
        let (entry, _exit) = sessions(dials).await;
        let (mut client, _end) = open(&entry, "tcp://web:80").await;
        client.write_all(b"request").await.unwrap();
        client.shutdown().await.unwrap();
        let (mut target, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        target.read_to_end(&mut request).await.unwrap();
        assert_eq!(request, b"early request");
        target.write_all(b"answer").await.unwrap();
        drop(target);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"answer");
        entry.idle().await;
        assert_eq!(entry.stream_count(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_refusal_arrives_with_its_class_and_its_words_and_the_session_goes_on() {
    in_time(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (entry, _exit) = sessions(leads_to(listener.local_addr().unwrap())).await;
        let (_client, end) = open(&entry, "tcp://db:5432").await;
        match end.await.unwrap() {
            OpenEnd::Refused(refusal) => assert_eq!(
                refusal,
                Refusal::new(Reason::NotAllowed, "tcp://db:5432 is denied")
            ),
            _ => panic!("it was not refused"),
        }
        let (_client, _end) = open(&entry, "tcp://web:80").await;
        listener.accept().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_target_that_resets_resets_the_client_behind_what_it_sent() {
    in_time(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (entry, _exit) = sessions(leads_to(listener.local_addr().unwrap())).await;
        let (mut client, _end) = open(&entry, "tcp://web:80").await;
        let (mut target, _) = listener.accept().await.unwrap();
        target.read_exact(&mut [0; 6]).await.unwrap();
        let half = vec![7; 1 << 20];
        target.write_all(&half).await.unwrap();
        target.set_zero_linger().unwrap();
        let mut came = vec![0; half.len()];
        client.read_exact(&mut came).await.unwrap();
        drop(target);
        let cut = client.read(&mut [0]).await.unwrap_err();
        assert_eq!(cut.kind(), ErrorKind::ConnectionReset);
    })
    .await;
}

#[tokio::test]
async fn an_exit_that_goes_away_lets_streams_end_and_takes_no_more() {
    in_time(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (entry, exit) = sessions(leads_to(listener.local_addr().unwrap())).await;
        let (mut client, _end) = open(&entry, "tcp://web:80").await;
        let (mut target, _) = listener.accept().await.unwrap();
        exit.go_away();
        entry.reached(Progress::GoingAway).await;
        client.write_all(b"late").await.unwrap();
        client.shutdown().await.unwrap();
        let mut late = Vec::new();
        target.read_to_end(&mut late).await.unwrap();
        assert_eq!(late, b"early late");
        drop(target);
        client.read_to_end(&mut late).await.unwrap();
        exit.idle().await;
    })
    .await;
}
