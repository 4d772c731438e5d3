//! Two ends of a way whose relays open late, or never.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

use super::*;
use crate::way::{Arrivals, Direct, Local, Way, local};

type Opens = oneshot::Sender<io::Result<Local>>;

/// Both ends, what opens each one's relay, and whether words get through.
fn ends(listens: bool) -> ([Way; 2], [Opens; 2]) {
    ends_after("", listens, [(); 2].map(|()| mpsc::unbounded_channel().1))
}

/// The same, after the first one has said something with its call; and with direct connections.
fn ends_after(said: &'static str, listens: bool, direct: [Arrivals; 2]) -> ([Way; 2], [Opens; 2]) {
    let ((a, from_a), (b, from_b)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let end = |tell: mpsc::UnboundedSender<Early>, told, leads, arrivals| {
        let (opens, opened) = oneshot::channel::<io::Result<Local>>();
        let tell = Box::new(move |early| {
            let _ = tell.send(early); // nobody may listen
        });
        let opening = async { opened.await.map_err(io::Error::other)? };
        let said = Some(Bytes::from(said)).filter(|said| leads && !said.is_empty());
        let relay = Box::new(Ahead::new(opening, Words { tell, said: said.clone(), told }));
        let mut way = Way::on_relay(leads, relay, arrivals);
        way.said(said.map_or(0, |said| said.len()));
        (way, opens)
    };
    let deaf = || mpsc::unbounded_channel().1;
    let (first, second) = if listens { (from_b, from_a) } else { (deaf(), deaf()) };
    let [to_near, to_far] = direct;
    let ((near, opens_near), (far, opens_far)) = (end(a, first, true, to_near), end(b, second, false, to_far));
    ([near, far], [opens_near, opens_far])
}

async fn say(from: &mut Way, to: &mut Way, what: &[u8]) {
    from.write_all(what).await.unwrap();
    from.flush().await.unwrap();
    let mut came = vec![0; what.len()];
    to.read_exact(&mut came).await.unwrap();
    assert_eq!(came, what);
}

#[tokio::test]
async fn first_bytes_need_no_relay_and_come_once_when_it_is_there() {
    let ([mut near, mut far], [opens_near, opens_far]) = ends(true);
    say(&mut near, &mut far, b"hello").await;
    say(&mut far, &mut near, &[7; 3 * LONGEST]).await;
    let (one, other) = local(8);
    opens_near.send(Ok(one)).unwrap();
    say(&mut far, &mut near, b"who are you?").await;
    opens_far.send(Ok(other)).unwrap();
    say(&mut near, &mut far, b"a worker").await;
    say(&mut near, &mut far, &[9; 100_000]).await;
}

#[tokio::test]
async fn what_does_not_get_through_ahead_comes_over_the_relay() {
    let ([mut near, mut far], [opens_near, opens_far]) = ends(false);
    near.write_all(b"hello").await.unwrap();
    near.flush().await.unwrap();
    let (one, other) = local(8);
    opens_near.send(Ok(one)).unwrap();
    opens_far.send(Ok(other)).unwrap();
    let (_, _) = tokio::join!(near.flush(), async {
        let mut came = [0; 5];
        far.read_exact(&mut came).await.unwrap();
        assert_eq!(&came, b"hello");
    });
    say(&mut near, &mut far, b"again").await;
}

/// The relay has a second copy of what went with the call; the line has not.
#[tokio::test]
async fn what_has_been_said_already_goes_over_the_relay_alone() {
    let nothing = [(); 2].map(|()| mpsc::unbounded_channel().1);
    let ([mut near, mut far], [opens_near, opens_far]) = ends_after("hello", true, nothing);
    near.write_all(b"world").await.unwrap();
    near.flush().await.unwrap();
    let read = tokio::time::timeout(Duration::from_millis(20), far.read(&mut [0; 10])).await;
    assert!(read.is_err(), "a word that would leave a gap is not read: {read:?}");
    let (one, other) = local(8);
    opens_near.send(Ok(one)).unwrap();
    opens_far.send(Ok(other)).unwrap();
    let mut came = [0; 10];
    let (_, read) = tokio::join!(near.flush(), far.read_exact(&mut came));
    read.unwrap();
    assert_eq!(&came, b"helloworld");
}

/// The direct connection may be there before anything is written: what went with the call is before it.
#[tokio::test]
async fn a_way_that_moves_at_once_moves_behind_what_has_been_said() {
    let (one, other) = tokio::io::duplex(1000);
    let direct = [one, other].map(|end| {
        let (arrive, arrivals) = mpsc::unbounded_channel();
        arrive.send(Ok(Box::new(end) as Box<dyn Direct>)).unwrap();
        arrivals
    });
    let ([mut near, mut far], [opens_near, opens_far]) = ends_after("hello", true, direct);
    let (one, other) = local(8);
    opens_near.send(Ok(one)).unwrap();
    opens_far.send(Ok(other)).unwrap();
    let mut came = [0; 10];
    let writes = async {
        near.write_all(b"world").await.unwrap();
        near.flush().await.unwrap();
        near.read(&mut [0]).await.unwrap()
    };
    let reads = async {
        far.read_exact(&mut came).await.unwrap();
        far.shutdown().await.unwrap();
    };
    assert_eq!(tokio::join!(writes, reads).0, 0);
    assert_eq!(&came, b"helloworld");
}

/// More than may go ahead waits; nothing is lost of it, and an end is an end.
#[tokio::test]
async fn a_writer_is_held_back_until_the_relay_is_there() {
    let ([mut near, mut far], [opens_near, opens_far]) = ends(true);
    let all: Vec<u8> = (0..80_000_u32).map(|n| (n % 251) as u8).collect();
    let expected = all.clone();
    let writes = tokio::spawn(async move {
        near.write_all(&all).await.unwrap();
        near.shutdown().await.unwrap();
        near.read(&mut [0]).await.unwrap()
    });
    let mut first = vec![0; MOST as usize];
    far.read_exact(&mut first).await.unwrap();
    assert!(!writes.is_finished());
    let (one, other) = local(8);
    opens_near.send(Ok(one)).unwrap();
    opens_far.send(Ok(other)).unwrap();
    far.read_to_end(&mut first).await.unwrap();
    assert_eq!(first, expected);
    far.shutdown().await.unwrap();
    assert_eq!(writes.await.unwrap(), 0);
}

#[tokio::test]
async fn a_relay_that_is_refused_is_told() {
    let ([mut near, _far], [opens_near, _opens_far]) = ends(true);
    opens_near.send(Err(io::Error::new(io::ErrorKind::ConnectionRefused, "no room"))).unwrap();
    let error = near.read(&mut [0]).await.unwrap_err();
    assert_eq!(error.to_string(), "no room");
}
