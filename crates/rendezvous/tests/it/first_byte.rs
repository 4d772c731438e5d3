//! What has to go over the lines before the first byte is there.

use std::sync::{Arc, Mutex};

use futures_util::{SinkExt, StreamExt};
use http::Request;
use http::header::AUTHORIZATION;
use nearpath_p2p::control::{self, Heard, Line};
use nearpath_p2p::driver::Relaying;
use nearpath_p2p::message::Said;
use nearpath_rendezvous::Limits;
use nearpath_testkit::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{accept_hdr_async, client_async};

use super::links::{Job, at_once};
use nearpath_testkit::p2p::rendezvous::{House, SOON, Worker, id, next};

/// Who said what, in the order of their saying; several words after each other are one flight.
#[derive(Clone, Default)]
struct Flights(Arc<Mutex<Vec<(String, &'static str)>>>);

impl Flights {
    fn note(&self, name: &str, said: &Said) {
        if let Said::Call { .. } = said {
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
        self.0.lock().unwrap().drain(..).map(|(name, what)| format!("{name} {what}")).collect()
    }
}

/// A worker whose line goes through a listener, and whose relays do not open.
async fn worker(house: &House, name: &'static str, flights: &Flights) -> Worker {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = format!("ws://{}", listener.local_addr().unwrap()).parse().unwrap();
    let (to, flights) = (house.rendezvous.addr, flights.clone());
    tokio::spawn(async move {
        let mut relays = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            let mut begin = [0; 9];
            while stream.peek(&mut begin).await.unwrap() < begin.len() {}
            if &begin == b"GET /v1/l" {
                tokio::spawn(pass_on(stream, to, name, flights.clone()));
            } else {
                relays.push(stream);
            }
        }
    });
    let settings = control::Settings { place, ..house.settings(house.ticket("sort", name)) };
    let (line, mut heard) = Line::open(settings.clone());
    assert!(matches!(next(&mut heard).await, Heard::Here(_)));
    Worker { line, heard, settings }
}

async fn pass_on(stream: TcpStream, to: std::net::SocketAddr, name: &str, flights: Flights) {
    let mut onward = format!("ws://{to}/v1/line").into_client_request().unwrap();
    #[expect(clippy::result_large_err, reason = "the library's own type")]
    let look = |request: &Request<()>, response| {
        onward.headers_mut().insert(AUTHORIZATION, request.headers()[AUTHORIZATION].clone());
        Ok(response)
    };
    let mut worker = accept_hdr_async(stream, look).await.unwrap();
    let (mut rendezvous, _) = client_async(onward, TcpStream::connect(to).await.unwrap()).await.unwrap();
    loop {
        let sent = tokio::select! {
            Some(Ok(message)) = worker.next() => {
                match &message {
                    Message::Text(text) => flights.note(name, &Said::read(text).unwrap()),
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

/// Three times through the rendezvous, whoever leads: the call, the answer to its hello, and the first byte with the rest of
/// the handshake.
#[tokio::test]
async fn the_first_byte_follows_the_answer_to_the_call() {
    let (house, flights) = (House::start(Limits::default()), Flights::default());
    let mut workers = [worker(&house, "a", &flights).await, worker(&house, "b", &flights).await];
    for greets in [true, false] {
        for [caller, called] in [["a", "b"], ["b", "a"]] {
            let job = Job::new();
            let [calls, answers] = &mut workers;
            let pair = job.pair(&id(caller), &id(called));
            let own = within(async {
                match greets {
                    true => calls.line.call_for(&pair, "", SOON).await,
                    false => calls.line.call(id(called), "", SOON).await,
                }
            });
            let own = own.await.unwrap();
            let others = answers.called().await;
            let [near, far] = at_once(&[]);
            let (near, far) = within(async {
                tokio::join!(
                    job.connect(calls, caller, own, near, Relaying::default()),
                    job.connect(answers, called, others, far, Relaying::default())
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
            assert_eq!(flights.take(), expected.into_iter().flatten().chain(rest).collect::<Vec<_>>());
            workers.reverse();
        }
    }
}
