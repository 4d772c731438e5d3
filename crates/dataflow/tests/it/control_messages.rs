//! Control messages between lines.

use std::io;
use std::time::Duration;

use nearpath_dataflow::remote::connection::Line;
use nearpath_dataflow::remote::control_message::LONGEST;
use nearpath_dataflow::remote::worker_name;
use nearpath_p2p::ticket::Job;
use nearpath_rendezvous::Limits;
use nearpath_testkit::p2p::rendezvous::{House, free, now};

const SOON: Duration = Duration::from_secs(20);

fn line(house: &House, name: &str) -> Line {
    let job: Job = "sort".parse().unwrap();
    let ticket = house.admit("sort", worker_name::identity(&job, name).unwrap(), name == "leader", now() + 3600);
    let line = Line::open(house.settings(ticket)).unwrap();
    assert!(line.wait(SOON).unwrap());
    line
}

#[test]
fn long_and_short_ones_arrive_by_name_and_the_leader_has_none() {
    let house = House::start(Limits::default());
    let (leader, map) = (line(&house, "leader"), line(&house, "word_count.3"));
    let long = "état\n".repeat(100_000);
    map.say(None, &long).unwrap();
    assert_eq!(leader.hear(SOON).unwrap(), [("word_count.3".to_owned(), long)]);
    leader.say(Some("word_count.3"), "go on").unwrap();
    assert_eq!(map.hear(SOON).unwrap(), [("leader".to_owned(), "go on".to_owned())]);
    assert!(map.hear(Duration::ZERO).unwrap().is_empty());
    assert!(leader.say(None, &"x".repeat(LONGEST + 1)).is_err());
    assert!(leader.say(Some("M".repeat(60).as_str()), "x").is_err());
}

#[test]
fn the_bell_rings_until_all_is_heard_and_again_when_the_line_is_closed() {
    let house = House::start(Limits::default());
    let (leader, map) = (line(&house, "leader"), line(&house, "map.0"));
    let rings = |line: &Line| {
        let bell = line.bell().try_clone_to_owned().unwrap();
        let mut polled = [rustix::event::PollFd::new(&bell, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&rustix::event::Timespec::default())).unwrap() == 1
    };
    assert!(!rings(&leader));
    map.say(None, "x").unwrap();
    assert_eq!(leader.hear(SOON).unwrap().len(), 1);
    assert!(!rings(&leader));
    map.say(None, "the last word").unwrap();
    map.close();
    assert!(rings(&map) && map.hear(SOON).unwrap_err().kind() == io::ErrorKind::ConnectionAborted);
    assert_eq!(leader.hear(SOON).unwrap()[0].1, "the last word", "it was said before the line ended");
}

/// What is said while there is no rendezvous is said later, once, and as it is then.
#[test]
fn a_rendezvous_that_starts_anew_is_told_the_newest_state() {
    let addr = free();
    let house = House::start_at(addr, Limits::default());
    let (leader, map) = (line(&house, "leader"), line(&house, "map.0"));
    drop(house);
    while map.wait(Duration::ZERO).unwrap() {
        std::thread::yield_now();
    }
    for state in 0..100 {
        map.say(None, &state.to_string()).unwrap();
    }
    let _house = House::start_at(addr, Limits::default());
    // The leader may come after the worker: then the worker's word is lost, and it says it again, as ever.
    let heard = loop {
        let heard = leader.hear(Duration::from_millis(200)).unwrap();
        if !heard.is_empty() {
            break heard;
        }
        map.say(None, "99").unwrap();
    };
    assert_eq!(heard[0], ("map.0".to_owned(), "99".to_owned()));
}

#[test]
fn who_comes_with_a_newer_line_is_the_worker() {
    let house = House::start(Limits::default());
    let first = line(&house, "map.0");
    let _second = line(&house, "map.0");
    let over = loop {
        if let Err(over) = first.hear(SOON) {
            break over;
        }
    };
    assert!(over.to_string().contains("newer line"), "{over}");
    let over = first.wait(SOON).unwrap_err();
    assert!(over.to_string().contains("newer line"), "it does not come again: {over}");
}

/// It is not waited for, and it is told what is wrong.
#[test]
fn a_ticket_that_is_refused_ends_the_wait() {
    let (house, other) = (House::start(Limits::default()), House::start(Limits::default()));
    let job: Job = "sort".parse().unwrap();
    let old = other.admit("sort", worker_name::identity(&job, "map.0").unwrap(), false, now() - 1);
    let line = Line::open(house.settings(old)).unwrap();
    let over = line.wait(Duration::MAX).unwrap_err();
    assert!(over.to_string().contains("the ticket has come to its end"), "{over}");
}
