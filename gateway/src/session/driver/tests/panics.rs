//! Panics in the tasks of a session.

use super::*;

#[tokio::test]
async fn a_panic_ends_its_session_and_nothing_else() {
    let test = async {
        let (wishes, others) = (Rc::default(), Rc::default());
        let (driver, mut far) = established(&wishes).await;
        let (other, mut other_far) = established(&others).await;
        let connection = |socket: TcpStream| Connection {
            socket: Box::new(LocalSocket::from(socket)),
            answer: Answer::None,
            source: None,
            has_next: false,
            local: Local::Target {
                target: "tcp://x:1".to_owned(),
                address: SocketAddr::from(([127, 0, 0, 1], 1)).into(),
                admission: Admission::default(),
            },
            early: Vec::new(),
        };
        let (local, mut client) = pair().await;
        let opened = driver.open(
            "tcp://x:1",
            Priority::Auto,
            connection(local),
            Box::new(|_| {}),
        );
        assert!(opened.is_ok());
        client.write_all(b"bytes").await.unwrap();
        assert_eq!(payload(&mut far).await, b"bytes");
        wishes.borrow_mut().panics = true;
        let word = codec::encode(&Frame::Ping(1));
        far.write_all(&word).await.unwrap();
        // The session ends its connection to the client, and its carrier.
        let end = client.read(&mut [0]).await;
        assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
        let mut rest = Vec::new();
        let _ = far.read_to_end(&mut rest).await;
        driver.streams_gone(Duration::from_secs(3)).await;
        assert!(driver.carriers.view().is_empty() && driver.streams.is_empty());
        assert_eq!(driver.telemetry.session_panics.get(), 1);
        let (local, mut late) = pair().await;
        let opened = driver.open(
            "tcp://x:1",
            Priority::Auto,
            connection(local),
            Box::new(|_| {}),
        );
        let opened = opened.map_err(|not_opened| not_opened.error);
        assert_eq!(opened, Err(OpenError::GoingAway));
        assert!(late.read(&mut [0]).await.is_err());
        // The other session continues.
        let (local, mut client) = pair().await;
        let opened = other.open(
            "tcp://x:1",
            Priority::Auto,
            connection(local),
            Box::new(|_| {}),
        );
        assert!(opened.is_ok());
        client.write_all(b"more").await.unwrap();
        assert_eq!(payload(&mut other_far).await, b"more");
        assert_eq!(other.telemetry.session_panics.get(), 0);
    };
    let tasks = LocalSet::new();
    let in_time = tokio::time::timeout(Duration::from_secs(60), tasks.run_until(test));
    in_time.await.unwrap();
}

#[tokio::test]
async fn a_panic_of_a_dial_ends_its_session() {
    let test = async {
        let (driver, _far) = established(&Rc::default()).await;
        let ended = Rc::clone(&driver);
        let dial = Rc::clone(&driver).guard(async { panic!("a fault of a dial") });
        tokio::task::spawn_local(dial).await.unwrap();
        ended.streams_gone(Duration::from_secs(3)).await;
        assert!(ended.carriers.view().is_empty() && ended.has_ended());
        assert_eq!(ended.telemetry.session_panics.get(), 1);
    };
    LocalSet::new().run_until(test).await;
}
