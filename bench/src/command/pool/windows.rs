//! Congestion windows: what it brings that a connection begins with what its path has borne, and that it costs the path nothing.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use nearpath_testkit::lab::{Lab, Link, Node};
use rustix::net::sockopt;

use super::{Args, here};
use crate::apart::Error;
use crate::command::quic::Place;
use crate::compare::{Better, Comparison, Goal, Ratio, Sample};
use crate::tally::Tally;
use crate::warm::ahead::{Ahead, Begin, Came, Load, serve};

/// The variants.
const BEGIN: [(&str, Begin); 3] = [("fresh", Begin::Fresh), ("warm", Begin::Warm), ("warm, open", Begin::Open)];
const NAMES: [&str; 3] = [BEGIN[0].0, BEGIN[1].0, BEGIN[2].0];
/// Who decides how windows grow.
const ALGORITHMS: [&str; 2] = ["cubic", "bbr"];
const SIZES: [(&str, u32); 3] = [("10 kB", 10_000), ("100 kB", 100_000), ("1 MB", 1_000_000)];
/// The link that is too narrow: bits a second, and the octets that wait for it, as much as a round trip of 2 ms holds.
const NARROW: u64 = 200_000_000;
const WAIT: usize = 50_000;

/// Every size at this distance, one way and the other.
pub(super) fn measure(args: &Args, place: Place, comparison: &mut Comparison) -> Result<(), Error> {
    let Place::Link(delay) = place else { return Ok(()) };
    if delay.is_zero() || !args.wants("window, ") {
        return Ok(());
    }
    for algorithm in ALGORITHMS {
        let what = format!("{algorithm}, round trip {} ms", delay.as_secs_f64() * 2e3);
        let (wide, narrow) = (Link { delay, ..Link::default() }, narrow(delay));
        on(&wide, algorithm, |ahead| sizes(args, &what, ahead, comparison))?;
        on(&narrow, algorithm, |ahead| congestion(args, &what, ahead, comparison))?;
    }
    Ok(())
}

fn narrow(delay: Duration) -> Link {
    Link { delay, rate: Some(NARROW), queue: WAIT, ..Link::default() }
}

/// Has connections made on one machine of a lab, to a server on another.
fn on(link: &Link, algorithm: &str, work: impl FnOnce(&mut Ahead) -> Result<(), Error> + Send) -> Result<(), Error> {
    let mut lab = Lab::new()?;
    let (near, far) = (lab.node("near")?, lab.node("far")?);
    let cable = lab.link(&near, &far, link)?;
    let server = server(&far, cable.second().v4.into(), algorithm)?;
    let worked = near.enter(|| {
        let mut ahead = Ahead::new(server, algorithm).map_err(|error| error.to_string())?;
        work(&mut ahead).map_err(|error| error.to_string())
    });
    worked?;
    Ok(())
}

fn server(far: &Node, at: IpAddr, algorithm: &str) -> Result<SocketAddr, Error> {
    let listener = far.enter(|| TcpListener::bind((at, 0)))?;
    sockopt::set_tcp_congestion(&listener, algorithm)?;
    let address = listener.local_addr()?;
    thread::spawn(move || serve(&listener));
    Ok(address)
}

fn sizes(args: &Args, what: &str, ahead: &mut Ahead, comparison: &mut Comparison) -> Result<(), Error> {
    for (size, octets) in SIZES {
        for (way, load) in [("up", Load { up: octets, down: 1 }), ("down", Load { up: 0, down: octets })] {
            let case = format!("window, {size} {way}, {what}");
            if !args.wants(&case) {
                continue;
            }
            let count = args.count.div_ceil(10);
            let several = async |index: usize| {
                let (_, begin): (_, Begin) = BEGIN[index];
                Ok::<_, Error>(told(&ahead.several(begin, load, count)?))
            };
            here(comparison.case(&case, &NAMES, several))?;
            let goal = |goal| Goal { value: |row| row.p50_us, better: Better::Lower, goal };
            comparison.ratio(&format!("p50, {case}, open/fresh"), &case, NAMES[2], NAMES[0], goal(1.0));
            if way == "up" && octets > 10_000 {
                comparison.ratio(&format!("p50, {case}, open/warm"), &case, NAMES[2], NAMES[1], goal(0.9));
            }
        }
    }
    Ok(())
}

/// On a narrow link: segments that were sent again.
fn congestion(args: &Args, what: &str, ahead: &mut Ahead, comparison: &mut Comparison) -> Result<(), Error> {
    for (size, octets) in &SIZES[1..] {
        let case = format!("window, {size} up through {} Mbit/s, {what}", NARROW / 1_000_000);
        if !args.wants(&case) {
            continue;
        }
        let (load, count, mut came) = (Load { up: *octets, down: 1 }, args.count.div_ceil(10), [0; 3]);
        let mut opened = 0;
        let several = async |index: usize| {
            let (_, begin): (_, Begin) = BEGIN[index];
            let seen = ahead.several(begin, load, count)?;
            came[index] += seen.resent;
            opened += seen.opened;
            Ok::<_, Error>(told(&seen))
        };
        here(comparison.case(&case, &NAMES, several))?;
        let of = args.rounds * count;
        let [fresh, warm, open] = came.map(|resent| resent as f64 / of as f64);
        let name =
            format!("{case}: sent again by a connection; fresh {fresh:.1}, warm {warm:.1}, open ({opened} of {of})");
        // A tenth is chance, as the two others differ.
        comparison.figure(Ratio {
            name,
            value: open,
            better: Better::Lower,
            goal: (fresh.max(warm) * 11.0).round() / 10.0,
        });
    }
    Ok(())
}

fn told(came: &Came) -> Sample {
    let mut tally = Tally::default();
    came.times.iter().for_each(|time| tally.add(Ok(*time)));
    Sample::of(&tally, came.times.iter().sum(), Duration::ZERO)
}
