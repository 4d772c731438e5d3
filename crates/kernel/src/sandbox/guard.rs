//! A child whose pair has to be guarded waits until it is: no program of a tenant sees the network before that.
//!
//! Over a socket pair: the child says that its pair is there, the node answers `ok`, or why not, which ends the child. Each end
//! sees the other's death as the end of the stream.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::network::device_name;
use super::spec::{Network, Spec};

/// A child builds its network within milliseconds. One that takes so long ends.
const PATIENCE: Duration = Duration::from_secs(10);
const THERE: u8 = b'+';
const GO_ON: &str = "ok";

/// The child's side: says that the pair is there, and waits.
pub(super) fn ask(guard: OwnedFd) -> io::Result<()> {
    let mut guard = UnixStream::from(guard);
    let mut answer = String::new();
    guard.write_all(&[THERE])?;
    guard.read_to_string(&mut answer)?;
    match answer.as_str() {
        GO_ON => Ok(()),
        "" => Err(io::Error::other("the node did not put the forwarder on the pair in time")),
        why => Err(io::Error::other(why)),
    }
}

/// The node's side: waits for the pair and puts the forwarder on it. What goes wrong is told by the child, in a note.
pub(super) fn stand(guard: OwnedFd, spec: &Spec) {
    let mut guard = UnixStream::from(guard);
    let mut there = [0];
    let heard = guard.set_read_timeout(Some(PATIENCE)).and_then(|()| guard.read_exact(&mut there));
    if let (Ok(()), Some(network)) = (heard, &spec.network) {
        let attached = attach(network, &device_name(spec.instance));
        let answer = attached.map_or_else(|error| format!("no forwarder: {error}"), |()| GO_ON.to_owned());
        let _ = guard.write_all(answer.as_bytes()); // it may have died meanwhile
    }
}

fn attach(network: &Network, device: &str) -> io::Result<()> {
    let (Some(forwarder), Some(switch)) = (&network.forwarder, &network.switch) else { return Ok(()) };
    forwarder.attach(switch, network.eip, device)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a child makes of what the node does.
    fn asked(node: impl FnOnce(UnixStream) + Send + 'static) -> io::Result<()> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let node = std::thread::spawn(move || node(ours));
        let answer = ask(theirs.into());
        node.join().unwrap();
        answer
    }

    fn after_the_word(mut node: UnixStream, answer: &str) {
        let mut there = [0];
        node.read_exact(&mut there).unwrap();
        assert_eq!(there, [THERE]);
        node.write_all(answer.as_bytes()).unwrap();
    }

    #[test]
    fn a_child_goes_on_only_when_told_so() {
        asked(|node| after_the_word(node, GO_ON)).unwrap();
        assert!(asked(|node| after_the_word(node, "")).unwrap_err().to_string().contains("in time"));
        let why = asked(|node| after_the_word(node, "no forwarder: full")).unwrap_err();
        assert_eq!(why.to_string(), "no forwarder: full");
    }

    #[test]
    fn a_child_that_dies_is_not_waited_for() {
        use crate::sandbox::Isolation;
        use nearpath_types::InstanceId;
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        stand(ours.into(), &Spec::new(InstanceId(1), Isolation::Root, "/bin/true".into()));
    }

    #[test]
    fn without_its_forwarder_a_child_ends() {
        use crate::bpf::{self, Forwarder};
        use crate::switch::Switch;
        use nearpath_types::{Eip, InstanceId};
        use std::sync::Arc;
        nearpath_testkit::need_root!();
        if let Err(why) = bpf::forwarding_possible() {
            nearpath_testkit::skip!("no forwarding here: {why}");
        }
        let gateway = [10, 62, 0, 1].into();
        let (switch, forwarder) = (Switch::create(gateway).unwrap(), Forwarder::load().unwrap());
        let mut spec = Spec::new(InstanceId(1), crate::sandbox::Isolation::Root, "/bin/true".into());
        let (switch, forwarder) = (Some(Arc::new(switch)), Some(Arc::new(forwarder)));
        spec.network = Some(Network { forwarder, ..Network::new(Eip([10, 62, 0, 2].into()), gateway, switch) });
        let why = asked(move |node| stand(node.into(), &spec)).unwrap_err(); // no child, hence no pair
        assert!(why.to_string().starts_with("no forwarder: "), "{why}");
    }
}
