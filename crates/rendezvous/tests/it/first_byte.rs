//! Messages on the control connections before the first byte.

use std::sync::{Arc, Mutex};

use futures_util::{SinkExt, StreamExt};
use http::Request;
use http::header::AUTHORIZATION;
use nearpath_p2p::control::{self, ControlConnection, ControlEvent};
use nearpath_p2p::driver::RelayPolicy;
use nearpath_p2p::message::WorkerMessage;
use nearpath_rendezvous::RendezvousLimits;
use nearpath_testkit::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{accept_hdr_async, client_async};

use super::links::{LinkJob, bound_ports};
use nearpath_testkit::p2p::rendezvous::{
    RENDEZVOUS_TIMEOUT, TestRendezvous, TestWorker, next_event, worker_id,
};

/// Log of senders in order; consecutive messages of one sender are one flight.
#[derive(Clone, Default)]
struct FlightLog(Arc<Mutex<Vec<(String, &'static str)>>>);

impl FlightLog {
    fn note_message(&self, name: &str, message: &WorkerMessage) {
        if let WorkerMessage::Call { .. } = message {
            self.add(name, "calls");
        }
    }

    fn add(&self, name: &str, what: &'static str) {
        let mut all = self.0.lock().unwrap();
        let flight = (name.to_owned(), what);
        if all.last() != Some(&flight) {
            all.push(flight);
        }
    }

    fn take(&self) -> Vec<String> {
        self.0
            .lock()
            .unwrap()
            .drain(..)
            .map(|(name, what)| format!("{name} {what}"))
            .collect()
    }
}

/// Creates a worker behind a proxy whose relays never open.
async fn proxied_worker(
    fixture: &TestRendezvous,
    name: &'static str,
    flights: &FlightLog,
) -> TestWorker {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = format!("ws://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    let (to, flights) = (fixture.rendezvous.addr, flights.clone());
    tokio::spawn(async move {
        let mut relays = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            let mut begin = [0; 9];
            while stream.peek(&mut begin).await.unwrap() < begin.len() {}
            if &begin == b"GET /v1/c" {
                tokio::spawn(forward_control(stream, to, name, flights.clone()));
            } else {
                relays.push(stream);
            }
        }
    });
    let settings = control::ControlSettings {
        url: place,
        ..fixture.control_settings(fixture.ticket("sort", name))
    };
    let (connection, mut events) = ControlConnection::open(settings.clone());
    assert!(matches!(
        next_event(&mut events).await,
        ControlEvent::Connected(_)
    ));
    TestWorker {
        connection,
        events,
        settings,
    }
}

async fn forward_control(
    stream: TcpStream,
    to: std::net::SocketAddr,
    name: &str,
    flights: FlightLog,
) {
    let mut onward = format!("ws://{to}/v1/control")
        .into_client_request()
        .unwrap();
    #[expect(clippy::result_large_err, reason = "the library's own type")]
    let look = |request: &Request<()>, response| {
        onward
            .headers_mut()
            .insert(AUTHORIZATION, request.headers()[AUTHORIZATION].clone());
        Ok(response)
    };
    let mut worker = accept_hdr_async(stream, look).await.unwrap();
    let (mut rendezvous, _) = client_async(onward, TcpStream::connect(to).await.unwrap())
        .await
        .unwrap();
    loop {
        let sent = tokio::select! {
            Some(Ok(message)) = worker.next() => {
                match &message {
                    Message::Text(text) => flights.note_message(name, &WorkerMessage::parse(text).unwrap()),
                    Message::Binary(_) => flights.add(name, "writes"),
                    _ => (),
                }
                rendezvous.send(message).await
            }
            Some(Ok(message)) = rendezvous.next() => worker.send(message).await,
            else => return,
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Three trips through the rendezvous, whichever side leads: the call, the answer to its hello, and
/// the first byte with the rest of the handshake.
#[tokio::test]
async fn the_first_byte_follows_one_round_trip_after_the_call() {
    let (fixture, flights) = (
        TestRendezvous::start(RendezvousLimits::default()),
        FlightLog::default(),
    );
    let mut workers = [
        proxied_worker(&fixture, "a", &flights).await,
        proxied_worker(&fixture, "b", &flights).await,
    ];
    for greets in [true, false] {
        for [caller, called] in [["a", "b"], ["b", "a"]] {
            let job = LinkJob::new();
            let [calls, answers] = &mut workers;
            let pair = job.pair(&worker_id(caller), &worker_id(called));
            let own = within(async {
                match greets {
                    true => {
                        calls
                            .connection
                            .call_for(&pair, "", RENDEZVOUS_TIMEOUT)
                            .await
                    }
                    false => {
                        calls
                            .connection
                            .call(worker_id(called), "", RENDEZVOUS_TIMEOUT)
                            .await
                    }
                }
            });
            let own = own.await.unwrap();
            let others = answers.next_call().await;
            let [near, far] = bound_ports(&[]);
            let (near, far) = within(async {
                tokio::join!(
                    job.connect(calls, caller, own, near, RelayPolicy::default()),
                    job.connect(answers, called, others, far, RelayPolicy::default())
                )
            })
            .await;
            let (mut near, mut far) = (near.unwrap(), far.unwrap());
            near.write_all(b"x").await.unwrap();
            near.flush().await.unwrap();
            assert_eq!(within(far.read_u8()).await.unwrap(), b'x');
            let hello = (!greets).then(|| format!("{caller} writes"));
            let expected = [Some(format!("{caller} calls")), hello];
            let rest = [format!("{called} writes"), format!("{caller} writes")];
            assert_eq!(
                flights.take(),
                expected
                    .into_iter()
                    .flatten()
                    .chain(rest)
                    .collect::<Vec<_>>()
            );
            workers.reverse();
        }
    }
}
