//! What calls over QUIC find here: buffers for bursts, and datagrams in batches.

use nearpath_wire::quic::udp::{BUFFER, Given, try_out};

use super::Check;

pub(super) fn checks() -> Vec<Check> {
    match try_out() {
        Ok(given) => of(&given),
        Err(error) => {
            let lost = "calls between machines go over TCP";
            vec![Check::warn("UDP", error.to_string(), lost, "allow UDP sockets on loopback, and IPv4")]
        }
    }
}

fn of(given: &Given) -> Vec<Check> {
    vec![
        buffer(
            "UDP receive buffer",
            given.receive,
            "net.core.rmem_max",
            "bursts of QUIC calls are lost and sent again",
        ),
        buffer("UDP send buffer", given.send, "net.core.wmem_max", "large answers over QUIC leave in smaller batches"),
        batches("UDP GSO", given.batch_out, "large bodies over QUIC cost a system call for every datagram"),
        batches("UDP GRO", given.batch_in, "large bodies over QUIC are read datagram by datagram"),
    ]
}

fn buffer(name: &str, given: usize, setting: &str, lost: &str) -> Check {
    let found = format!("{} KiB of {} KiB", given >> 10, BUFFER >> 10);
    match given >= BUFFER {
        true => Check::ok(name, found),
        false => {
            let advice =
                format!("`sysctl -w {setting}={BUFFER}` as root; in a file in /etc/sysctl.d it outlives a restart");
            Check::warn(name, found, lost, &advice)
        }
    }
}

fn batches(name: &str, datagrams: usize, lost: &str) -> Check {
    match datagrams > 1 {
        true => Check::ok(name, format!("{datagrams} datagrams at a time")),
        false => Check::warn(name, "not there", lost, "use Linux 5.0 or newer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn small_buffers_come_with_the_line_that_mends_them() {
        let little = Given { receive: 212_992, send: BUFFER, batch_out: 64, batch_in: 1 };
        let [receive, send, out, back] = &of(&little)[..] else { panic!("four checks") };
        assert_eq!((receive.verdict, receive.found.as_str()), (Verdict::Warn, "208 KiB of 4096 KiB"));
        assert!(receive.advice.as_ref().unwrap().contains("`sysctl -w net.core.rmem_max=4194304`"));
        assert!(receive.lost.is_some() && !receive.fatal);
        assert_eq!((send.verdict, out.verdict, back.verdict), (Verdict::Ok, Verdict::Ok, Verdict::Warn));
        let none = Given { send: 0, ..little };
        assert!(of(&none)[1].advice.as_ref().unwrap().contains("net.core.wmem_max"));
    }
}
