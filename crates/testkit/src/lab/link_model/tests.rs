//! The model against a virtual clock: packets are numbers, offered at any time, taken when they are
//! due.

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// Packets that came out, with their times.
type PacketArrivals = Vec<(Duration, u64)>;

/// Offers packets of these lengths after these pauses, and takes each when the model says that it
/// is due.
fn play_packets(line: &mut LinkModel<u64>, sent: &[(Duration, usize)]) -> PacketArrivals {
    let (mut now, mut arrivals) = (Duration::ZERO, Vec::new());
    for (number, &(pause, length)) in (0..).zip(sent) {
        now += pause;
        take_until(line, now, &mut arrivals);
        if line.offer_packet(now, length, || number) == PacketFate::Arrives {
            arrivals.push((now, number));
        }
    }
    take_until(line, Duration::MAX, &mut arrivals);
    arrivals
}

/// Plays a driver that wakes up exactly when the next packet is due.
fn take_until(line: &mut LinkModel<u64>, end: Duration, arrivals: &mut PacketArrivals) {
    while let Some(next) = line.next_arrival().filter(|&next| next <= end) {
        while let Some(packet) = line.take_due(next) {
            arrivals.push((next, packet));
        }
    }
}

fn model_with(link: LinkConditions) -> LinkModel<u64> {
    let seed = link.seed;
    LinkModel::new(link, seed)
}

fn packet_numbers(arrivals: &PacketArrivals) -> Vec<u64> {
    arrivals.iter().map(|&(_, number)| number).collect()
}

fn share_of() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), Just(1.0), 0.0..1.0_f64]
}

prop_compose! {
    fn links()(
        delay in 0..5_000_u64, jitter in 0..5_000_u64, late in 0..9_000_u64,
        loss in share_of(), duplicate in share_of(), reorder in share_of(),
        rate in proptest::option::of(8_000..1_000_000_000_u64),
        queue in 0..40_000_usize,
        largest in proptest::option::of(100..2_000_usize),
        seed: u64,
    ) -> LinkConditions {
        let [delay, jitter, late] = [delay, jitter, late].map(Duration::from_micros);
        LinkConditions { delay, jitter, loss, duplicate, reorder, late, rate, queue_bytes: queue, largest_packet: largest, seed, ..LinkConditions::default() }
    }
}

fn any_packets() -> impl Strategy<Value = Vec<(Duration, usize)>> {
    proptest::collection::vec(
        ((0..300_u64).prop_map(Duration::from_micros), 1..2_000_usize),
        0..200,
    )
}

proptest! {
    /// No packet is forgotten and none invented: at the end all are counted where they ended.
    #[test]
    fn each_packet_is_counted_once(link in links(), sent in any_packets()) {
        let mut line = model_with(link);
        let arrivals = play_packets(&mut line, &sent);
        let c = line.counts();
        prop_assert_eq!((c.offered, c.underway), (sent.len() as u64, 0));
        prop_assert_eq!(c.delivered, arrivals.len() as u64);
        prop_assert_eq!(c.offered + c.duplicated, c.delivered + c.lost + c.overflowed + c.swallowed + c.cut);
        let octets: u64 = arrivals.iter().map(|&(_, number)| sent[usize::try_from(number).unwrap()].1 as u64).sum();
        prop_assert_eq!(c.delivered_octets, octets);
    }

    /// Delay is a lower bound always, and with jitter and `late` an upper one where no rate makes
    /// packets wait.
    #[test]
    fn nothing_arrives_early(link in links(), sent in any_packets()) {
        let mut now = Duration::ZERO;
        let times: Vec<Duration> = sent.iter().map(|&(pause, _)| { now += pause; now }).collect();
        let arrivals = play_packets(&mut model_with(link.clone()), &sent);
        for &(at, number) in &arrivals {
            let underway = at - times[usize::try_from(number).unwrap()];
            prop_assert!(underway >= link.delay);
            let most = link.delay + link.jitter + link.late;
            prop_assert!(link.rate.is_some() || underway <= most);
        }
    }

    /// Without `reorder` packets keep their order, whatever jitter says.
    #[test]
    fn order_is_kept(link in links(), sent in any_packets()) {
        let link = LinkConditions { reorder: 0.0, ..link };
        let arrivals = packet_numbers(&play_packets(&mut model_with(link), &sent));
        prop_assert!(arrivals.is_sorted());
    }

    /// In no span of time more octets are sent than the rate allows, but for one packet that
    /// straddles its beginning.
    #[test]
    fn the_rate_is_kept(link in links(), sent in any_packets(), rate in 8_000..100_000_000_u64) {
        let plain = LinkConditions { jitter: Duration::ZERO, reorder: 0.0, duplicate: 0.0, loss: 0.0, rate: Some(rate), ..link };
        let arrivals = play_packets(&mut model_with(plain), &sent);
        let length = |number: u64| sent[usize::try_from(number).unwrap()].1;
        for (place, &(from, _)) in arrivals.iter().enumerate() {
            let mut octets = 0;
            for &(until, number) in &arrivals[place + 1..] {
                octets += length(number);
                let allowed = (until - from).as_nanos() * u128::from(rate) / 8_000_000_000;
                prop_assert!(octets as u128 <= allowed + 1, "{octets} octets where {allowed} are allowed");
            }
        }
    }

    /// The queue holds at most what it may, or a single packet.
    #[test]
    fn the_queue_is_bounded(link in links(), sent in any_packets(), rate in 8_000..1_000_000_u64) {
        let mut line = model_with(LinkConditions { rate: Some(rate), ..link.clone() });
        let mut now = Duration::ZERO;
        for &(pause, length) in &sent {
            now += pause;
            line.offer_packet(now, length, || 0);
            prop_assert_eq!(line.queued, line.queue.iter().map(|&(_, length)| length).sum::<usize>());
            prop_assert!(line.queued <= link.queue_bytes || line.queue.len() == 1);
        }
    }

    /// The same seed does the same again, and not another thing because delay and rate differ.
    #[test]
    fn chance_depends_on_the_seed_alone(link in links(), sent in any_packets(), delay in 0..9_000_u64) {
        let link = LinkConditions { rate: None, ..link };
        let first = play_packets(&mut model_with(link.clone()), &sent);
        prop_assert_eq!(&first, &play_packets(&mut model_with(link.clone()), &sent));
        let slower = LinkConditions { delay: Duration::from_micros(delay), jitter: MS, late: MS * 50, ..link };
        let sorted = |arrivals: &PacketArrivals| { let mut all = packet_numbers(arrivals); all.sort_unstable(); all };
        prop_assert_eq!(sorted(&first), sorted(&play_packets(&mut model_with(slower), &sent)), "other packets were lost or doubled");
    }

    /// Changing and cutting at any time loses the count of no packet either, and what comes later
    /// still keeps its order.
    #[test]
    fn changes_lose_nothing(before in links(), after in links(), first in any_packets(), second in any_packets(), cut: bool) {
        let mut line = model_with(LinkConditions { reorder: 0.0, ..before });
        for &(_, length) in &first {
            line.offer_packet(Duration::ZERO, length, || 0);
        }
        line.set_cut(cut);
        line.set_cut(false);
        prop_assert!(!cut || line.next_arrival().is_none(), "a cut link holds nothing");
        line.set_conditions(LinkConditions { reorder: 0.0, ..after }, 1);
        let arrivals = packet_numbers(&play_packets(&mut line, &second));
        prop_assert!(arrivals.is_sorted(), "one that came later overtook those underway");
        let c = line.counts();
        prop_assert_eq!(c.offered + c.duplicated, c.delivered + c.lost + c.overflowed + c.swallowed + c.cut);
    }
}

#[test]
fn the_lost_share_matches_the_configured_one() {
    let mut line = model_with(LinkConditions {
        loss: 0.1,
        seed: 3,
        ..LinkConditions::default()
    });
    play_packets(&mut line, &[(MS, 100); 20_000]);
    assert!(
        (1_800..2_200).contains(&line.counts().lost),
        "{:?}",
        line.counts()
    );
}

#[test]
fn a_packet_that_is_held_back_is_overtaken() {
    let link = LinkConditions {
        delay: MS,
        reorder: 0.2,
        late: MS * 3,
        seed: 1,
        ..LinkConditions::default()
    };
    let mut line = model_with(link);
    let arrivals = packet_numbers(&play_packets(&mut line, &[(MS, 100); 100]));
    assert!(!arrivals.is_sorted() && line.counts().late > 0);
    assert_eq!(arrivals.len(), 100);
}

#[test]
fn a_full_queue_drops_the_last_that_come() {
    let mut line = model_with(LinkConditions {
        rate: Some(8_000_000),
        queue_bytes: 3_000,
        ..LinkConditions::default()
    });
    let fates: Vec<PacketFate> = (0..5)
        .map(|number| line.offer_packet(Duration::ZERO, 1_000, || number))
        .collect();
    assert_eq!(
        fates,
        [
            PacketFate::Underway,
            PacketFate::Underway,
            PacketFate::Underway,
            PacketFate::Dropped,
            PacketFate::Dropped
        ]
    );
    assert_eq!(
        line.offer_packet(MS, 1_000, || 5),
        PacketFate::Underway,
        "1 ms at 8 Mbit/s makes room for 1000 octets"
    );
    let mut arrivals = Vec::new();
    take_until(&mut line, Duration::MAX, &mut arrivals);
    assert_eq!(arrivals, [(MS, 0), (MS * 2, 1), (MS * 3, 2), (MS * 4, 5)]);
    assert_eq!(line.counts().overflowed, 2);
}

#[test]
fn too_long_packets_vanish() {
    let mut line = model_with(LinkConditions {
        largest_packet: Some(1_280),
        ..LinkConditions::default()
    });
    let arrivals = play_packets(&mut line, &[(MS, 1_280), (MS, 1_281), (MS, 100)]);
    assert_eq!(packet_numbers(&arrivals), [0, 2]);
    assert_eq!(line.counts().swallowed, 1);
}
