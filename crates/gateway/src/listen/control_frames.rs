//! Limit of PING and SETTINGS frames of HTTP/2 clients (CVE-2019-9512, CVE-2019-9515). The server
//! must answer each, so a client that sends little else costs work and is cut.

/// Length of the client's preface (RFC 9113 section 3.4).
const PREFACE_BYTES: usize = 24;
/// Length of a frame head (RFC 9113 section 4.1).
const HEAD_BYTES: usize = 9;
/// Types of the frames that the server must answer.
const SETTINGS_FRAME: u8 = 4;
const PING_FRAME: u8 = 6;
/// Costs of such a frame. A PING after each message of a gRPC stream, to measure the bandwidth,
/// must be free: the message has at least 14 bytes, the answer to the PING 17.
const FRAME_COST: i64 = 31;
/// Budget of a new connection, and the most that it can earn: 1,000 frames.
const MAX_BUDGET: i64 = 1_000 * FRAME_COST;
/// Earned per tick: 24 frames a second.
const EARNED_PER_TICK: i64 = 6 * FRAME_COST;

/// Budget of one connection in bytes. A PING or SETTINGS frame costs [`FRAME_COST`]. Bytes of other
/// frames, bytes written to the client, and time earn some.
#[derive(Debug)]
pub(super) struct ControlFrameBudget {
    frames: FrameScan,
    remaining: i64,
    last_tick: u32,
}

impl ControlFrameBudget {
    /// Creates the budget of a connection that begins at tick `now`.
    pub(super) fn new(now: u32) -> Self {
        Self {
            frames: FrameScan::new(),
            remaining: MAX_BUDGET,
            last_tick: now,
        }
    }

    /// Notes bytes that the client sent. Returns whether the connection goes on.
    pub(super) fn note_read(&mut self, bytes: &[u8], now: u32) -> bool {
        let ticks = now.wrapping_sub(std::mem::replace(&mut self.last_tick, now));
        self.earn(i64::from(ticks) * EARNED_PER_TICK);
        let Scanned {
            control_frames,
            other_bytes,
        } = self.frames.scan(bytes);
        self.remaining -= i64::from(control_frames) * FRAME_COST;
        self.earn(i64::from(other_bytes));
        self.remaining > 0
    }

    /// Notes bytes that were written to the client.
    pub(super) fn note_written(&mut self, bytes: usize) {
        self.earn(i64::try_from(bytes).unwrap_or(MAX_BUDGET));
    }

    fn earn(&mut self, bytes: i64) {
        self.remaining = self.remaining.saturating_add(bytes).min(MAX_BUDGET);
    }
}

/// What a client sent.
#[derive(Debug, Default, PartialEq, Eq)]
struct Scanned {
    /// PING and SETTINGS frames.
    control_frames: u32,
    /// Bytes of all other frames.
    other_bytes: u32,
}

/// Position in the client's frames.
#[derive(Debug)]
struct FrameScan {
    head: [u8; HEAD_BYTES],
    head_len: usize,
    /// Bytes before the next frame head.
    payload_left: usize,
    payload_earns: bool,
}

impl FrameScan {
    fn new() -> Self {
        Self {
            head: [0; HEAD_BYTES],
            head_len: 0,
            payload_left: PREFACE_BYTES,
            payload_earns: false,
        }
    }

    fn scan(&mut self, mut bytes: &[u8]) -> Scanned {
        let mut scanned = Scanned::default();
        while !bytes.is_empty() {
            bytes = if self.payload_left > 0 {
                self.skip_payload(bytes, &mut scanned)
            } else {
                self.read_head(bytes, &mut scanned)
            };
        }
        scanned
    }

    fn skip_payload<'a>(&mut self, bytes: &'a [u8], scanned: &mut Scanned) -> &'a [u8] {
        let skipped = self.payload_left.min(bytes.len());
        self.payload_left -= skipped;
        if self.payload_earns {
            scanned.other_bytes += u32::try_from(skipped).unwrap_or(u32::MAX >> 1);
        }
        &bytes[skipped..]
    }

    fn read_head<'a>(&mut self, bytes: &'a [u8], scanned: &mut Scanned) -> &'a [u8] {
        let (now, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES - self.head_len));
        self.head[self.head_len..][..now.len()].copy_from_slice(now);
        self.head_len += now.len();
        if self.head_len == HEAD_BYTES {
            self.head_len = 0;
            let [a, b, c, frame_type, ..] = self.head;
            self.payload_left = u32::from_be_bytes([0, a, b, c]) as usize;
            self.payload_earns = !matches!(frame_type, SETTINGS_FRAME | PING_FRAME);
            scanned.control_frames += u32::from(!self.payload_earns);
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const PONG_BYTES: usize = 17;

    fn frame(frame_type: u8, payload: usize) -> Vec<u8> {
        let [_, a, b, c] = u32::try_from(payload).unwrap().to_be_bytes();
        let mut frame = vec![a, b, c, frame_type, 0, 0, 0, 0, 0];
        frame.resize(HEAD_BYTES + payload, PING_FRAME);
        frame
    }

    fn started_budget() -> ControlFrameBudget {
        let mut budget = ControlFrameBudget::new(0);
        assert!(budget.note_read(PREFACE, 0));
        budget
    }

    #[test]
    fn frames_are_counted_however_they_are_cut() {
        let frames = [frame(0, 100), frame(6, 8), frame(4, 0), frame(1, 20)].concat();
        let sent = [PREFACE, &frames].concat();
        for part in 1..=sent.len() {
            let (mut scan, mut sum) = (FrameScan::new(), Scanned::default());
            for bytes in sent.chunks(part) {
                let Scanned {
                    control_frames,
                    other_bytes,
                } = scan.scan(bytes);
                sum.control_frames += control_frames;
                sum.other_bytes += other_bytes;
            }
            let expected = Scanned {
                control_frames: 2,
                other_bytes: 120,
            };
            assert_eq!(sum, expected, "in parts of {part}");
        }
    }

    #[test]
    fn floods_end_although_their_answers_are_written() {
        for (flood, answer_bytes) in [(frame(6, 8), PONG_BYTES), (frame(4, 6), HEAD_BYTES)] {
            let mut budget = started_budget();
            let allowed = (0..10_000).take_while(|_| {
                budget.note_written(answer_bytes);
                budget.note_read(&flood, 0)
            });
            assert!((1_000..3_000).contains(&allowed.count()));
        }
    }

    #[test]
    fn a_ping_after_each_message_of_the_server_or_the_client_is_free() {
        let (mut receiver, mut sender) = (started_budget(), started_budget());
        let message = frame(0, 14);
        for _ in 0..100_000 {
            receiver.note_written(14 + PONG_BYTES);
            assert!(receiver.note_read(&frame(6, 8), 0));
            sender.note_written(PONG_BYTES);
            assert!(sender.note_read(&[&message[..], &frame(6, 8)].concat(), 0));
        }
    }

    #[test]
    fn pings_at_a_slow_pace_are_free() {
        let mut budget = started_budget();
        assert!((0..100_000).all(|n| budget.note_read(&frame(6, 8), n / 6)));
    }
}
