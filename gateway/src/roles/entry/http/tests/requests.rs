//! What clients do during their request: they wait with its body, end their half, or go.

use super::*;

const EXPECTS: &str =
    "PUT /a HTTP/1.1\r\nHost: web\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";

#[tokio::test]
async fn a_client_that_asks_first_sends_its_body_once_the_target_wants_it() {
    let (ends, exchange) = Ends::of(EXPECTS).await;
    let (mut client, mut target) = (ends.client, ends.target);
    let play = async {
        let mut seen = Vec::new();
        read_some(&mut target, &mut seen).await;
        assert!(text(&seen).contains("Expect: 100-continue\r\n"));
        target
            .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")
            .await
            .unwrap();
        let mut told = [0; 25];
        client.read_exact(&mut told).await.unwrap();
        assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
        client.write_all(b"body").await.unwrap();
        let mut body = [0; 4];
        target.read_exact(&mut body).await.unwrap();
        target.write_all(OK.as_bytes()).await.unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        assert!(got.ends_with(b"ok"), "{}", text(&got));
        drop(client);
    };
    tokio::join!(run(exchange), play);
}

#[tokio::test]
async fn a_client_that_asks_first_and_is_refused_sends_no_body() {
    let answer = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n";
    let played = exchange(EXPECTS, answer, Reason::Completed).await;
    let Played { got, seen, .. } = &played;
    assert!(got.starts_with("HTTP/1.1 413 "), "{got}");
    // The client may send its body all the same, so its connection ends.
    assert!(got.contains("\r\nConnection: close\r\n"), "{got}");
    assert!(played.is_whole && seen.ends_with("\r\n\r\n"), "{seen}");
    assert!(played.rest.is_none());
}

#[tokio::test]
async fn a_gateway_that_shuts_down_says_that_it_closes_the_connection() {
    let (ends, exchange) = Ends::of("GET /a HTTP/1.1\r\nHost: web\r\n\r\n").await;
    let (mut client, mut target) = (ends.client, ends.target);
    let play = async {
        read_some(&mut target, &mut Vec::new()).await;
        ends.phase.send_replace(Phase::Draining);
        target.write_all(OK.as_bytes()).await.unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        assert!(text(&got).contains("\r\nConnection: close\r\n"));
        drop(client);
    };
    assert_eq!(tokio::join!(run(exchange), play).0, None);
}

#[tokio::test]
async fn a_client_that_ends_its_half_gets_its_response() {
    let (ends, exchange) = Ends::of(GET).await;
    let (mut client, mut target) = (ends.client, ends.target);
    let play = async {
        client.shutdown().await.unwrap();
        read_some(&mut target, &mut Vec::new()).await;
        target.write_all(OK.as_bytes()).await.unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.unwrap();
        drop(client);
        assert!(got.ends_with(b"ok"), "{}", text(&got));
    };
    tokio::join!(run(exchange), play);
}

#[tokio::test]
async fn a_client_that_ends_its_half_in_its_request_is_told_so() {
    for (fields, part) in [
        ("Content-Length: 9", "part"),
        ("Transfer-Encoding: chunked", "9\r\npart"),
    ] {
        let request = format!("PUT /a HTTP/1.1\r\nHost: web\r\n{fields}\r\n\r\n{part}");
        let (ends, exchange) = Ends::of(&request).await;
        let (mut client, mut target) = (ends.client, ends.target);
        let play = async {
            let mut seen = Vec::new();
            while !String::from_utf8_lossy(&seen).contains("part") {
                assert!(target.read_buf(&mut seen).await.unwrap() > 0);
            }
            client.shutdown().await.unwrap();
            // The target sees a cut body.
            assert_eq!(target.read_to_end(&mut seen).await.unwrap(), 0);
            let mut got = Vec::new();
            client.read_to_end(&mut got).await.unwrap();
            drop(client);
            assert!(text(&got).starts_with("HTTP/1.1 400 Bad Request\r\n"));
        };
        assert_eq!(tokio::join!(run(exchange), play).0, None);
    }
}

#[tokio::test]
async fn a_client_that_goes_ends_its_stream() {
    let (ends, exchange) = Ends::of(GET).await;
    let (client, mut target) = (ends.client, ends.target);
    let play = async {
        let mut seen = Vec::new();
        read_some(&mut target, &mut seen).await;
        client.set_zero_linger().unwrap();
        drop(client);
        assert_eq!(target.read(&mut [0]).await.unwrap(), 0);
    };
    tokio::join!(run(exchange), play);
}
