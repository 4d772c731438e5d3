//! Two ends of a way whose relay comes late, breaks, or never comes; the clock is the tests'.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};

use futures_util::{FutureExt, Sink, Stream, stream};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, split};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::*;
use crate::control::sequence::Saying;
use crate::migrate::{Arrivals, Direct, Local, Piece, Place, Relay, Way, local};

/// A connection to the relay that can be cut.
struct Cable {
    end: Local,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Cable {
    fn is_cut(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.cut.poll_unpin(cx).is_ready() {
            self.cut = Box::pin(std::future::ready(()));
            return Err(io::Error::new(io::ErrorKind::ConnectionReset, "cut"));
        }
        Ok(())
    }
}

impl Stream for Cable {
    type Item = io::Result<Piece>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Err(error) = self.is_cut(cx) {
            return Poll::Ready(Some(Err(error)));
        }
        self.end.poll_next_unpin(cx)
    }
}

impl Sink<Piece> for Cable {
    type Error = io::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_cut(cx)?;
        self.end.poll_ready_unpin(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, piece: Piece) -> io::Result<()> {
        self.end.start_send_unpin(piece)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end.poll_flush_unpin(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end.poll_close_unpin(cx)
    }
}

impl Relay for Cable {}

/// What both ends dial.
#[derive(Default)]
struct Inner {
    /// How often each end has.
    dialled: [usize; 2],
    waiting: [Option<oneshot::Sender<Result<Cable, Cut>>>; 2],
    /// Cuts what is joined.
    cuts: Vec<watch::Sender<bool>>,
    /// Nobody gets through.
    down: bool,
    /// Nor ever will.
    refuses: bool,
}

#[derive(Clone, Default)]
struct Exchange(Arc<Mutex<Inner>>);

struct Dialler {
    exchange: Exchange,
    at: usize,
}

impl Exchange {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.0.lock().unwrap())
    }

    fn dialled(&self) -> [usize; 2] {
        self.with(|inner| inner.dialled)
    }

    fn cut(&self) {
        for cut in self.with(|inner| std::mem::take(&mut inner.cuts)) {
            cut.send_replace(true);
        }
    }

    fn set_down(&self, down: bool) {
        self.with(|inner| {
            inner.down = down;
            inner.waiting = [None, None];
        });
        if down {
            self.cut();
        }
    }
}

fn refused() -> Cut {
    Cut { error: io::Error::new(io::ErrorKind::ConnectionRefused, "nobody is there"), is_final: false }
}

impl Dial for Dialler {
    type Relay = Cable;

    fn dial(&mut self) -> Dialling<Cable> {
        let at = self.at;
        let dialled = self.exchange.with(|inner| {
            inner.dialled[at] += 1;
            if inner.refuses {
                return Err(Cut { error: io::Error::other("no pass"), is_final: true });
            }
            if inner.down {
                return Err(refused());
            }
            let (mine, joined) = oneshot::channel();
            inner.waiting[at] = Some(mine);
            if inner.waiting.iter().all(Option::is_some) {
                let (cut, is_cut) = watch::channel(false);
                inner.cuts.push(cut);
                let (near, far) = local(8);
                for (waiting, end) in inner.waiting.iter_mut().zip([near, far]) {
                    let mut is_cut = is_cut.clone();
                    let cut = Box::pin(async move {
                        if is_cut.wait_for(|cut| *cut).await.is_err() {
                            std::future::pending().await
                        }
                    });
                    let _ = waiting.take().unwrap().send(Ok(Cable { end, cut }));
                }
            }
            Ok(joined)
        });
        Box::pin(async move { dialled?.await.unwrap_or_else(|_| Err(refused())) })
    }
}

/// Both ends of a way.
struct Ends {
    ways: [Way; 2],
    exchange: Exchange,
    prospects: [mpsc::UnboundedSender<Prospect>; 2],
    arrivals: [mpsc::UnboundedSender<io::Result<Box<dyn Direct>>>; 2],
    /// What went over the line.
    said: Arc<Mutex<Vec<Saying>>>,
    /// What begins their searches.
    searches: [Arc<Notify>; 2],
}

/// How the line is.
#[derive(Clone, Copy, PartialEq)]
enum Hears {
    All,
    Nothing,
    /// Of each side so much.
    First(usize),
}

fn ends(hears: Hears, settings: Times) -> Ends {
    ends_that_look(hears, settings, None)
}

/// `after`: they look for a direct way when it is worth it; not from the beginning.
fn ends_that_look(hears: Hears, settings: Times, after: Option<Duration>) -> Ends {
    let searches = [(); 2].map(|()| Arc::new(Notify::new()));
    let ((a, from_a), (b, from_b)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let (exchange, said) = (Exchange::default(), Arc::default());
    let end = |at, to: mpsc::UnboundedSender<Saying>, told| {
        let (all, count) = (Arc::clone(&said), std::sync::atomic::AtomicUsize::new(0));
        let tell = Box::new(move |saying: Saying| {
            let before = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let all: &Mutex<Vec<Saying>> = &all;
            all.lock().unwrap().push(saying.clone());
            let heard = match hears {
                Hears::All => true,
                Hears::Nothing => false,
                Hears::First(most) => before < most,
            };
            if heard {
                let _ = to.send(saying); // nobody may listen any more
            }
        });
        let (prospects, hoped) = mpsc::unbounded_channel();
        let hoped = stream::unfold(hoped, |mut hoped| async { Some((hoped.recv().await?, hoped)) }).boxed();
        let dial = Dialler { exchange: exchange.clone(), at };
        let begin = after.map(|after| (Arc::clone(&searches[at]), after));
        let search = Search { prospects: hoped, begin };
        let lasting = Lasting::new(dial, Words { tell, said: None, told }, search, settings);
        let (arrive, arrivals): (_, Arrivals) = mpsc::unbounded_channel();
        (Way::on_relay(at == 0, Box::new(lasting), arrivals), prospects, arrive)
    };
    let (near, far) = (end(0, a, from_b), end(1, b, from_a));
    Ends { ways: [near.0, far.0], prospects: [near.1, far.1], arrivals: [near.2, far.2], exchange, said, searches }
}

fn patient() -> Times {
    Times { head_start: Duration::from_secs(5), heard: Duration::from_secs(5), patience: Duration::from_secs(60) }
}

/// A link that is there for longer is no short one.
const LASTS: Duration = Duration::from_secs(10);

/// Whose searches were begun.
fn begun(searches: &[Arc<Notify>; 2]) -> [bool; 2] {
    [0, 1].map(|side| searches[side].notified().now_or_never().is_some())
}

/// Both sides are there until it has come.
async fn say(from: &mut Way, to: &mut Way, what: &[u8]) {
    let mut came = vec![0; what.len()];
    let writes = async {
        from.write_all(what).await.unwrap();
        poll_fn::<(), _>(|cx| match Pin::new(&mut *from).poll_flush(cx) {
            Poll::Ready(Err(error)) => panic!("{error}"),
            _ => Poll::Pending,
        })
        .await;
    };
    tokio::select! {
        () = writes => {}
        read = to.read_exact(&mut came) => drop(read.unwrap()),
    }
    assert!(came == what, "something else came");
}

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

impl Ends {
    fn direct(&self) {
        let (near, far): (DuplexStream, DuplexStream) = tokio::io::duplex(1 << 16);
        for (arrivals, end) in self.arrivals.iter().zip([near, far]) {
            arrivals.send(Ok(Box::new(end))).unwrap();
        }
        // Who is on the relay does not listen.
        for prospects in &self.prospects {
            let _ = prospects.send(Prospect::Direct);
        }
    }
}

/// Shake hands, say something, move, end: nobody asks for the relay; nothing is left to do for it later either.
#[tokio::test(start_paused = true)]
async fn a_way_that_moves_soon_needs_no_relay() {
    let mut ends = ends(Hears::All, patient());
    let [near, far] = &mut ends.ways;
    say(near, far, b"hello").await;
    say(far, near, &text(3000)).await;
    say(near, far, b"first").await;
    let places = [near.places(), far.places()];
    ends.direct();
    let [near, far] = &mut ends.ways;
    say(near, far, &text(200_000)).await;
    say(far, near, &text(200_000)).await;
    assert!(places.iter().all(|places| places.borrow().out == Place::Direct));
    sleep(Duration::from_secs(300)).await;
    assert_eq!(ends.exchange.dialled(), [0, 0]);
    assert!(ends.said.lock().unwrap().len() < 20);
    // Both have closed: what they had for the line is gone, and with it the session.
    assert!(ends.prospects.iter().all(mpsc::UnboundedSender::is_closed));
}

/// The control: without a direct way it is asked for when the head start is over, and not before.
#[tokio::test(start_paused = true)]
async fn a_way_that_does_not_move_takes_the_relay() {
    let mut ends = ends(Hears::All, patient());
    let exchange = ends.exchange.clone();
    let [near, far] = &mut ends.ways;
    say(near, far, b"hello").await;
    let all = text(500_000);
    let both = async { say(near, far, &all).await };
    tokio::pin!(both);
    assert!(timeout(Duration::from_millis(4900), &mut both).await.is_err(), "16 KiB and no more");
    assert_eq!(exchange.dialled(), [0, 0]);
    both.await;
    assert_eq!(exchange.dialled(), [1, 1]);
}

/// Both say what fits the line, and close: nobody looks for a direct way, and nobody asks for the relay.
#[tokio::test(start_paused = true)]
async fn a_short_link_looks_for_nothing() {
    let mut ends = ends_that_look(Hears::All, patient(), Some(LASTS));
    let [near, far] = &mut ends.ways;
    say(near, far, &text(100_000)).await;
    say(far, near, &text(100_000)).await;
    let [near, far] = ends.ways;
    tokio::try_join!(near.close(), far.close()).unwrap();
    sleep(LASTS * 2).await;
    assert_eq!((ends.exchange.dialled(), begun(&ends.searches)), ([0, 0], [false, false]));
}

/// The one that writes looks, while half of what the line takes is left.
#[tokio::test(start_paused = true)]
async fn a_link_that_carries_more_looks_for_a_direct_way() {
    let mut ends = ends_that_look(Hears::All, patient(), Some(LASTS));
    let [near, far] = &mut ends.ways;
    say(near, far, &text(140_000)).await;
    assert_eq!((ends.exchange.dialled(), begun(&ends.searches)), ([0, 0], [true, false]));
    // Both search now: the relay waits until they have had their head start.
    ends.prospects.iter().for_each(|prospects| prospects.send(Prospect::Looking).unwrap());
    let [near, far] = &mut ends.ways;
    say(near, far, &text(100_000)).await;
    let all = text(500_000);
    let rest = async { say(near, far, &all).await };
    tokio::pin!(rest);
    assert!(timeout(Duration::from_millis(4900), &mut rest).await.is_err(), "256 KiB and no more");
    assert_eq!(ends.exchange.dialled(), [0, 0]);
    rest.await;
    assert_eq!(ends.exchange.dialled(), [1, 1]);
}

/// Who looks at it late does not see that a direct way was looked for, only that it is there.
#[tokio::test(start_paused = true)]
async fn a_link_that_hears_late_of_its_direct_way_takes_the_relay_for_what_the_line_lost() {
    let mut ends = ends_that_look(Hears::First(2), patient(), Some(LASTS));
    let [near, far] = &mut ends.ways;
    say(near, far, &text(40_000)).await;
    ends.direct();
    let [near, far] = &mut ends.ways;
    say(near, far, &text(200_000)).await;
    say(far, near, &text(200_000)).await;
    assert_eq!(ends.exchange.dialled(), [1, 1]);
}

/// However little it carries.
#[tokio::test(start_paused = true)]
async fn a_link_that_lasts_looks_for_a_direct_way() {
    let mut ends = ends_that_look(Hears::All, patient(), Some(LASTS));
    let [near, far] = &mut ends.ways;
    say(near, far, b"hello").await;
    let mut byte = [0];
    let waits = async { tokio::join!(near.read(&mut byte), far.write_all(&[])) };
    let _ = timeout(LASTS + Duration::from_secs(1), waits).await;
    assert!(begun(&ends.searches)[0]);
}

#[tokio::test(start_paused = true)]
async fn a_hopeless_search_is_not_waited_for() {
    let mut ends = ends(Hears::All, patient());
    ends.prospects.iter().for_each(|prospects| prospects.send(Prospect::Hopeless).unwrap());
    let [near, far] = &mut ends.ways;
    timeout(Duration::from_secs(1), say(near, far, &text(500_000))).await.unwrap();
    assert_eq!(ends.exchange.dialled(), [1, 1]);
}

/// What the line has lost, from any word on, the relay says; also the words of the move.
#[tokio::test(start_paused = true)]
async fn what_the_line_loses_the_relay_carries() {
    for hears in (0..12).map(Hears::First).chain([Hears::Nothing]) {
        let mut ends = ends(hears, patient());
        let [near, far] = &mut ends.ways;
        say(near, far, b"hello").await;
        say(far, near, &text(9000)).await;
        ends.direct();
        let [near, far] = &mut ends.ways;
        for _ in 0..3 {
            say(near, far, &text(1000)).await;
            say(far, near, &text(1000)).await;
        }
        let direct = ends.ways.iter().all(|way| way.places().borrow().out == Place::Direct);
        assert!(direct || hears == Hears::Nothing, "it moves all the same");
        sleep(Duration::from_secs(100)).await;
        assert!(ends.prospects.iter().all(mpsc::UnboundedSender::is_closed));
    }
}

/// Cut again and again, in the middle of bytes that go both ways.
#[tokio::test(start_paused = true)]
async fn a_relay_that_breaks_comes_back() {
    let ends = ends(Hears::All, Times { head_start: Duration::ZERO, ..patient() });
    let all = text(20 << 20);
    let cuts = tokio::spawn({
        let exchange = ends.exchange.clone();
        async move {
            for at in 0.. {
                sleep(Duration::from_millis(at % 7 * 13)).await;
                tokio::task::yield_now().await;
                exchange.cut();
            }
        }
    });
    let run = async |way: Way| {
        let (mut read, mut write) = split(way);
        let mut came = Vec::new();
        let (wrote, read) = tokio::join!(
            async {
                for part in all.chunks(100_000) {
                    write.write_all(part).await?;
                    sleep(Duration::from_millis(200)).await; // time passes between cuts
                }
                write.shutdown().await
            },
            read.read_to_end(&mut came)
        );
        wrote.unwrap();
        read.unwrap();
        assert!(came == all, "something else came");
    };
    let [near, far] = ends.ways;
    tokio::join!(run(near), run(far));
    cuts.abort();
    assert!(ends.exchange.dialled()[0] > 8, "{:?}", ends.exchange.dialled());
}

/// The error says how long it was tried, and why in vain; both sides have it.
#[tokio::test(start_paused = true)]
async fn a_relay_that_stays_away_is_told() {
    let mut ends = ends(Hears::All, Times { head_start: Duration::ZERO, ..patient() });
    let [near, far] = &mut ends.ways;
    say(near, far, &text(100_000)).await;
    let before = Instant::now();
    ends.exchange.set_down(true);
    let error = async |way: &mut Way| {
        let error = way.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert!(error.to_string().contains("60s: nobody is there"), "{error}");
        assert!(way.write(b"x").await.is_err());
    };
    tokio::join!(error(near), error(far));
    let tried = before.elapsed();
    assert!((60..62).contains(&tried.as_secs()), "{tried:?}");
    assert!((5..30).contains(&ends.exchange.dialled()[0]), "{:?}", ends.exchange.dialled());
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_is_refused_is_told_at_once() {
    let ends = ends(Hears::Nothing, patient());
    ends.exchange.with(|inner| inner.refuses = true);
    ends.prospects[0].send(Prospect::Hopeless).unwrap();
    let [mut near, _far] = ends.ways;
    assert_eq!(near.read(&mut [0]).await.unwrap_err().to_string(), "no pass");
    assert_eq!(ends.exchange.dialled(), [1, 0]);
}

/// All that was written arrives before a close, though the relay breaks meanwhile, and who closes waits for that.
#[tokio::test(start_paused = true)]
async fn a_close_waits_until_the_peer_has_everything() {
    let ends = ends(Hears::All, Times { head_start: Duration::ZERO, ..patient() });
    let [mut near, mut far] = ends.ways;
    let exchange = ends.exchange.clone();
    let all = text(1 << 20);
    say(&mut near, &mut far, &all).await;
    near.write_all(&all).await.unwrap();
    exchange.set_down(true);
    let closing = tokio::spawn(near.close());
    let reading = tokio::spawn(async move {
        let mut came = Vec::new();
        far.read_to_end(&mut came).await.unwrap();
        far.close().await.unwrap();
        came
    });
    sleep(Duration::from_secs(10)).await;
    assert!(!closing.is_finished() && !reading.is_finished(), "the peer cannot have it");
    exchange.set_down(false);
    assert!(reading.await.unwrap() == all);
    closing.await.unwrap().unwrap();
}

/// Who is dropped without a word leaves nothing behind, and its peer hears of it, with the relay and without.
#[tokio::test(start_paused = true)]
async fn who_is_dropped_is_missed_at_once() {
    for (head_start, hears) in [(5, Hears::All), (0, Hears::All), (2, Hears::First(1))] {
        let head_start = Duration::from_secs(head_start);
        let settings = Times { head_start, heard: head_start, ..patient() };
        let Ends { ways: [mut near, mut far], prospects, .. } = ends(hears, settings);
        say(&mut near, &mut far, b"hello").await;
        drop(near);
        let error = timeout(Duration::from_secs(4), far.read(&mut [0])).await.unwrap().unwrap_err();
        assert!(error.to_string().contains("before the peer did"), "{error}");
        drop(far);
        sleep(Duration::from_secs(100)).await;
        assert!(prospects.iter().all(mpsc::UnboundedSender::is_closed));
    }
}

/// A reader that does nothing for minutes holds its writer back; nothing breaks.
#[tokio::test(start_paused = true)]
async fn who_does_not_read_is_waited_for() {
    let ends = ends(Hears::All, Times { head_start: Duration::ZERO, ..patient() });
    let [mut near, mut far] = ends.ways;
    let all = text(20 << 20);
    say(&mut near, &mut far, &all).await;
    let expected = all.clone();
    let writes = tokio::spawn(async move {
        near.write_all(&all).await.unwrap();
        near.close().await
    });
    sleep(Duration::from_secs(500)).await;
    assert!(!writes.is_finished());
    let mut came = Vec::new();
    far.read_to_end(&mut came).await.unwrap();
    assert!(came == expected);
    drop(far);
    writes.await.unwrap().unwrap();
}
