//! Sessions in memory that request ports.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

use super::*;
use crate::base::forward::Admission;
use crate::io::local_socket::LocalSocket;
use crate::session::mux::Dial;
use crate::session::mux::memory::{Memory, memory, silent};

/// The reverse listeners of an exit, and an address that the exit's `allowListen` permits.
async fn reverse() -> (Rc<Reverse>, String) {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap().to_string();
    (Reverse::new(&Worker::of(&yaml(&address))), address)
}

/// The reverse listeners of two workers of an exit.
async fn two_workers() -> ([Rc<Reverse>; 2], String) {
    let (first, address) = reverse().await;
    let mut second = Reverse::new(&Worker::of(&yaml(&address)));
    Rc::get_mut(&mut second).unwrap().shared_ports = Arc::clone(&first.shared_ports);
    ([first, second], address)
}

fn yaml(address: &str) -> String {
    format!(
        "role: Exit\nprotocol: Native\nsecurity: {{mode: None}}\nlisten: 127.0.0.1:1\nallowListen: ['{address}']\n"
    )
}

/// A session whose other end writes `name` and the requested target to each client.
fn named(name: &'static str) -> Rc<Memory> {
    let dialler = Box::new(move |target: String, _, _| -> Dial {
        Box::pin(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let dial = TcpStream::connect(listener.local_addr().unwrap());
            let (near, far) = tokio::join!(dial, listener.accept());
            let mut far = far.unwrap().0;
            tokio::task::spawn_local(async move {
                far.write_all(format!("{name} {target}").as_bytes())
                    .await
                    .unwrap();
            });
            let near = near.unwrap();
            Ok(crate::net::dial::Dialled {
                address: near.peer_addr().unwrap().into(),
                socket: Box::new(LocalSocket::from(near)),
                admission: Admission::default(),
                url: None,
            })
        })
    });
    memory(Some("entry"), dialler)
}

async fn greeting(address: &str) -> String {
    let mut client = TcpStream::connect(address).await.unwrap();
    let mut greeting = String::new();
    client.read_to_string(&mut greeting).await.unwrap();
    greeting
}

#[tokio::test]
async fn a_connection_goes_to_the_least_loaded_asker_and_on_to_another_one_that_stays() {
    let test = async {
        let (reverse, address) = reverse().await;
        let (silent, quick) = (silent(Some("entry")), named("quick"));
        let sessions = [silent.shared(), quick.shared()];
        sessions.iter().for_each(|session| reverse.serve(session));
        assert_eq!(silent.asks_to_listen(&address).1, Ok(address.clone()));
        assert_eq!(quick.asks_to_listen(&address).1, Ok(address.clone()));
        let at = address.clone();
        let waits = tokio::task::spawn_local(async move { greeting(&at).await });
        while sessions[0].stream_count() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(greeting(&address).await, "quick listen://1");
        silent.goes_away();
        assert_eq!(waits.await.unwrap(), "quick listen://1");
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_port_belongs_to_the_identity_of_its_first_asker() {
    let test = async {
        let (reverse, address) = reverse().await;
        let (owner, stranger) = (silent(Some("entry")), silent(Some("other")));
        let sessions = [owner.shared(), stranger.shared()];
        sessions.iter().for_each(|session| reverse.serve(session));
        let (listen, told) = owner.asks_to_listen(&address);
        assert_eq!(told, Ok(address.clone()));
        assert!(stranger.asks_to_listen(&address).1.is_err());
        owner.says(ListenEvent::GivenUp { listen });
        // The socket is closed together with its task.
        tokio::task::yield_now().await;
        assert_eq!(stranger.asks_to_listen(&address).1, Ok(address.clone()));
        assert!(
            owner.asks_to_listen("127.0.0.1:1").1.is_err(),
            "the address is not allowed"
        );
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_session_that_does_not_answer_takes_no_connection_while_another_one_answers() {
    let test = async {
        let (reverse, address) = reverse().await;
        let (dead, quick) = (named("dead"), named("quick"));
        let sessions = [dead.shared(), quick.shared()];
        sessions.iter().for_each(|session| reverse.serve(session));
        assert_eq!(dead.asks_to_listen(&address).1, Ok(address.clone()));
        assert_eq!(dead.asked.get(), 0);
        assert_eq!(quick.asks_to_listen(&address).1, Ok(address.clone()));
        assert_eq!((dead.asked.get(), quick.asked.get()), (1, 0));
        // It has not answered this request yet.
        dead.owes.set(true);
        for _ in 0..5 {
            assert_eq!(greeting(&address).await, "quick listen://1");
        }
        dead.owes.set(false);
        dead.answers.set(false);
        for _ in 0..5 {
            assert_eq!(greeting(&address).await, "quick listen://1");
        }
        quick.answers.set(false);
        assert_eq!(greeting(&address).await, "dead listen://1");
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_worker_without_an_answering_session_hands_its_connections_to_another_worker() {
    let test = async {
        let (workers, address) = two_workers().await;
        let (dead, quick) = (named("dead"), named("quick"));
        let sessions = [dead.shared(), quick.shared()];
        workers[0].serve(&sessions[0]);
        workers[1].serve(&sessions[1]);
        assert_eq!(dead.asks_to_listen(&address).1, Ok(address.clone()));
        assert_eq!(quick.asks_to_listen(&address).1, Ok(address.clone()));
        dead.answers.set(false);
        for _ in 0..20 {
            assert_eq!(greeting(&address).await, "quick listen://1");
        }
        assert_eq!((dead.asked.get(), quick.asked.get()), (1, 0));
        // Nobody answers, so each worker uses its own session.
        quick.answers.set(false);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..40 {
            seen.insert(greeting(&address).await);
        }
        assert_eq!(seen.len(), 2, "{seen:?}");
        // A session that shuts down takes no connection, even if no other session answers.
        quick.goes_away();
        for _ in 0..20 {
            assert_eq!(greeting(&address).await, "dead listen://1");
        }
    };
    LocalSet::new().run_until(test).await;
}
