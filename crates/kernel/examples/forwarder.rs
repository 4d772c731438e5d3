//! A process for tests that forwards between two attached namespaces until its input ends.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{self, Read};

use nearpath_kernel::bpf::Forwarder;
use nearpath_types::Eip;

fn main() -> io::Result<()> {
    let forwarder = Forwarder::load_program()?;
    let hub = File::open("/proc/self/ns/net")?;
    let devices: Vec<String> = std::env::args().skip(1).collect();
    let mut eips = Vec::new();
    for device in devices.chunks(2) {
        let eip = Eip(device[0].parse().map_err(io::Error::other)?);
        forwarder.attach_device(&hub, eip, &device[1])?;
        eips.push(eip);
    }
    forwarder.allow_pair(eips[0], eips[1])?;
    println!("up");
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}
