//! Listeners of two sessions, and of peers whose requests no MuxTunnel gateway sends.

use std::rc::Rc;
use std::time::{Duration, Instant};

use muxtunnel_proto::{LISTENS_MAX, ListenEvent, ListenWord, Reason, listen_target};
use quinn::{ConnectionError, SendStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::super::tests::hello;
use super::super::wire::Message;
use super::*;
use crate::io::carrier::Carrier;
use crate::io::quic::CloseCode;
use crate::io::quic::tests::PROTOCOL;
use crate::session::bridge::tests::{exit_of, in_time, leads_to, nowhere, open, sessions_of};
use crate::session::mux::{Dialler, Mux, Progress};

const ADDRESS: &str = "127.0.0.1:8080";

fn id(number: u32) -> ListenId {
    ListenId::from_number(number).unwrap()
}

/// The events of listeners that `mux` reports.
fn heard(mux: &Rc<dyn Mux>) -> UnboundedReceiver<ListenEvent> {
    let (tell, heard) = unbounded_channel();
    let hears = Box::new(move |event| drop(tell.send(event)));
    mux.listeners().unwrap().hear(hears);
    heard
}

fn asked(number: u32) -> ListenEvent {
    ListenEvent::Asked {
        listen: id(number),
        address: ADDRESS.to_owned(),
        priority: Priority::Bulk,
    }
}

fn ask(mux: &Rc<dyn Mux>) -> Result<ListenId, ListenError> {
    mux.listeners().unwrap().listen(ADDRESS, Priority::Bulk)
}

/// Returns an entry and its exit, and the events of both. The entry's listeners forward to
/// `listener`.
async fn both(listener: &TcpListener) -> ([Rc<dyn Mux>; 2], [UnboundedReceiver<ListenEvent>; 2]) {
    let leads = leads_to(listener.local_addr().unwrap());
    let dials: Dialler = Box::new(move |target, peer, source| {
        leads(target.replace("listen://", "tcp://web:"), peer, source)
    });
    let (entry, exit) = sessions_of(PROTOCOL, dials, nowhere()).await;
    exit.reached(Progress::Ready).await;
    let both = [heard(&entry), heard(&exit)];
    ([entry, exit], both)
}

#[tokio::test]
async fn an_entry_that_asks_gets_the_streams_of_its_listener_until_it_has_had_enough() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ([entry, exit], [mut of_entry, mut of_exit]) = both(&listener).await;
        assert_eq!(ask(&entry), Ok(id(1)));
        assert_eq!(of_exit.recv().await, Some(asked(1)));
        exit.listeners().unwrap().listening(id(1), "[::1]:8080");
        let listening = ListenEvent::Listening {
            listen: id(1),
            address: "[::1]:8080".to_owned(),
        };
        assert_eq!(of_entry.recv().await, Some(listening));
        let (mut client, _end) = open(&exit, &listen_target(id(1))).await;
        let (mut target, _) = listener.accept().await.unwrap();
        let sent: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
        let request = async {
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
        };
        let mut came = Vec::new();
        let (_, read) = tokio::join!(request, target.read_to_end(&mut came));
        read.unwrap();
        assert!(came[6..] == sent);
        entry.listeners().unwrap().unlisten(id(1));
        let given_up = ListenEvent::GivenUp { listen: id(1) };
        assert_eq!(of_exit.recv().await, Some(given_up));
        // Open streams continue.
        target.write_all(b"late").await.unwrap();
        drop(target);
        let mut late = Vec::new();
        client.read_to_end(&mut late).await.unwrap();
        assert_eq!(late, b"late");
        // The next listener gets a new number.
        assert_eq!(ask(&entry), Ok(id(2)));
        assert_eq!(of_exit.recv().await, Some(asked(2)));
    })
    .await;
}

#[tokio::test]
async fn a_refusal_arrives_with_its_class_and_its_words_now_and_later() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ([entry, exit], [mut of_entry, mut of_exit]) = both(&listener).await;
        for number in [1, 2] {
            assert_eq!(ask(&entry), Ok(id(number)));
            assert_eq!(of_exit.recv().await, Some(asked(number)));
            if number == 2 {
                exit.listeners().unwrap().listening(id(2), ADDRESS);
                of_entry.recv().await.unwrap();
            }
            let refusal = Refusal::new(Reason::NotAllowed, "no more");
            let ends = exit.listeners().unwrap();
            ends.end_listen(id(number), refusal.clone());
            let listen = id(number);
            let ended = ListenEvent::Ended { listen, refusal };
            assert_eq!(of_entry.recv().await, Some(ended));
        }
    })
    .await;
}

#[tokio::test]
async fn an_exit_that_goes_away_listens_no_more_and_answers_what_is_asked() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ([entry, exit], [mut of_entry, mut of_exit]) = both(&listener).await;
        exit.go_away();
        // The message has not reached the exit yet.
        assert_eq!(ask(&entry), Ok(id(1)));
        match of_entry.recv().await {
            Some(ListenEvent::Ended { refusal, .. }) => {
                assert!(refusal.description.contains("shutting down"), "{refusal:?}");
            }
            other => panic!("{other:?}"),
        }
        assert!(of_exit.try_recv().is_err());
    })
    .await;
}

#[tokio::test]
async fn a_listener_goes_to_another_connection_where_its_own_retires() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ([entry, _exit], [mut of_entry, mut of_exit]) = both(&listener).await;
        assert_eq!(ask(&entry), Ok(id(1)));
        assert_eq!(of_exit.recv().await, Some(asked(1)));
        let renewed = Instant::now();
        // An exit has one session for each connection.
        let (near, other_exit) = exit_of(PROTOCOL, nowhere()).await;
        let mut of_other = heard(&other_exit);
        let carriers = entry.carriers().unwrap();
        let added = carriers.add(Carrier::Quic(near), Vec::new(), None);
        drop(added.unwrap());
        carriers.until(&|numbers| numbers.up == 2).await;
        carriers.outdate(&|carrier| carrier.since < renewed);
        assert!(carriers.retire_one());
        assert_eq!(of_other.recv().await, Some(asked(1)));
        carriers.until(&|numbers| numbers.up == 1).await;
        other_exit.listeners().unwrap().listening(id(1), ADDRESS);
        let listening = ListenEvent::Listening {
            listen: id(1),
            address: ADDRESS.to_owned(),
        };
        assert_eq!(of_entry.recv().await, Some(listening));
        assert_eq!(ask(&entry), Ok(id(2)));
        assert_eq!(of_other.recv().await, Some(asked(2)));
    })
    .await;
}

#[tokio::test]
async fn an_entry_asks_for_no_more_than_the_protocol_allows() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ([entry, exit], _heard) = both(&listener).await;
        for _ in 0..LISTENS_MAX {
            ask(&entry).unwrap();
        }
        assert_eq!(ask(&entry), Err(ListenError::TooMany));
        assert!(!exit.has_ended());
    })
    .await;
}

async fn say(control: &mut SendStream, word: ListenWord) {
    // This fails if the exit has closed the connection.
    let _ = control.write_all(&Message::Listen(word).encode()).await;
}

fn listen_word(number: u32) -> ListenWord {
    ListenWord::Listen {
        listen: id(number),
        priority: Priority::Auto,
        address: ADDRESS.to_owned(),
    }
}

#[tokio::test]
async fn whoever_asks_for_more_or_out_of_order_is_cut_off() {
    let floods: [Vec<ListenWord>; 4] = [
        (1..1000).map(listen_word).collect(),
        vec![listen_word(2), listen_word(2)],
        vec![ListenWord::Listening {
            listen: id(1),
            address: ADDRESS.to_owned(),
        }],
        vec![ListenWord::Unlisten {
            listen: id(7),
            code: 0,
            reason: String::new(),
        }],
    ];
    for words in floods {
        in_time(async {
            let (near, exit) = exit_of(PROTOCOL, nowhere()).await;
            let mut of_exit = heard(&exit);
            let mut control = hello(&near).await;
            for word in words {
                say(&mut control, word).await;
            }
            let ConnectionError::ApplicationClosed(close) = near.quic().closed().await else {
                panic!("the peer did not close the connection");
            };
            assert_eq!(close.error_code, CloseCode::Violation.into());
            while !exit.has_ended() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            of_exit.close();
            let mut asked = 0;
            while of_exit.recv().await.is_some() {
                asked += 1;
            }
            assert!(asked <= LISTENS_MAX, "{asked}");
        })
        .await;
    }
}
