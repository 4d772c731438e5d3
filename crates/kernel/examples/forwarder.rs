//! For tests: a process that forwards for two stations of the namespace in which it was started, until its input ends.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{self, Read};

use nearpath_kernel::bpf::Forwarder;
use nearpath_types::Eip;

fn main() -> io::Result<()> {
    let forwarder = Forwarder::load()?;
    let switch = File::open("/proc/self/ns/net")?;
    let stations: Vec<String> = std::env::args().skip(1).collect();
    let mut eips = Vec::new();
    for station in stations.chunks(2) {
        let eip = Eip(station[0].parse().map_err(io::Error::other)?);
        forwarder.attach(&switch, eip, &station[1])?;
        eips.push(eip);
    }
    forwarder.allow(eips[0], eips[1])?;
    println!("up");
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}
